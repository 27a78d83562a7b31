"""What can go wrong with an evaluation."""

from __future__ import annotations

from hookline_hookspecs import HooklineError

__all__ = ["EvaluationError"]


class EvaluationError(HooklineError, RuntimeError):
    """An evaluation could not be made, or gave no scores."""
