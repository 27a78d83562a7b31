"""What a policy chooses from: one of so many, or a vector of numbers within bounds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Actions", "Continuous", "Discrete", "outputs_for"]


@dataclass(frozen=True)
class Discrete:
    """One of `n` actions, numbered from 0."""

    n: int


@dataclass(frozen=True)
class Continuous:
    """A vector of `size` numbers. An environment sees them clipped to `low..high`, the policy does not."""

    size: int
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


Actions = Discrete | Continuous


def outputs_for(actions: Actions) -> int:
    """How many numbers a policy gives for one choice: logits, or means."""
    return actions.n if isinstance(actions, Discrete) else actions.size
