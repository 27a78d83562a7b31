"""`RolloutBuffer`: a queue of rollouts for the trainer, without stale ones."""

from __future__ import annotations

from collections import deque

from hookline_hookspecs import Rollout

__all__ = ["RolloutBuffer"]


class RolloutBuffer:
    """Keeps rollouts in order, and counts those that it drops.

    :param max_staleness: how many versions a rollout's weights may be behind the current ones. None for no limit.
    :param capacity: how many rollouts it holds. When it is full, the oldest is dropped.
    """

    def __init__(self, max_staleness: int | None, capacity: int) -> None:
        self._max_staleness = max_staleness
        self._capacity = capacity
        self._waiting: deque[Rollout] = deque()
        self.dropped_stale = 0
        """Rollouts dropped because their weights were too old."""
        self.dropped_full = 0
        """Rollouts dropped because the buffer was full."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, rollout: Rollout) -> None:
        if len(self._waiting) == self._capacity:
            self._waiting.popleft()
            self.dropped_full += 1
        self._waiting.append(rollout)

    def drop_stale(self, current_version: int) -> None:
        """Drop the rollouts that are too old for weights of this version."""
        if self._max_staleness is None:
            return
        fresh = [r for r in self._waiting if current_version - r.weights_version <= self._max_staleness]
        self.dropped_stale += len(self._waiting) - len(fresh)
        self._waiting = deque(fresh)

    def take(self) -> list[Rollout]:
        """Remove and return all rollouts, oldest first."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
