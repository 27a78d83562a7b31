"""How far a run has come, for what is annealed in a straight line."""

from __future__ import annotations

from hookline_hookspecs import TrainerState

__all__ = ["remaining"]


def remaining(state: TrainerState) -> float:
    """The share of epochs that is left, the current one included: 1 in the first."""
    return 1.0 if state.total_epochs is None else 1 - state.epoch / state.total_epochs
