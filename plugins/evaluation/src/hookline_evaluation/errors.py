"""What can go wrong with an evaluation."""

from __future__ import annotations

__all__ = ["EvaluationError"]


class EvaluationError(RuntimeError):
    """An evaluation could not be made, or gave no scores."""
