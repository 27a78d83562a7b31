"""The error of evaluations."""

from __future__ import annotations

from hookline_hookspecs import HooklineError

__all__ = ["EvaluationError"]


class EvaluationError(HooklineError, RuntimeError):
    """An evaluation failed, or gave no scores."""
