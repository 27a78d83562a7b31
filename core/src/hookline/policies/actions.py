"""Action spaces: discrete, or continuous vectors within bounds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Actions", "Continuous", "Discrete", "outputs_for"]


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions, numbered from 0."""

    n: int


@dataclass(frozen=True)
class Continuous:
    """A vector of `size` numbers. They are clipped to `low..high` for the environment only."""

    size: int
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


Actions = Discrete | Continuous


def outputs_for(actions: Actions) -> int:
    """The number of policy outputs for one action: logits, or means."""
    return actions.n if isinstance(actions, Discrete) else actions.size
