"""What a policy chooses from: one of so many, or a vector of numbers within bounds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Actions", "Continuous", "Discrete"]


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
