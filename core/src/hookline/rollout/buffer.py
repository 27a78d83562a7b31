"""Rollouts that wait for a trainer, without those that have waited too long."""

from __future__ import annotations

from collections import deque

from hookline_hookspecs import Rollout

__all__ = ["RolloutBuffer"]


class RolloutBuffer:
    """Keeps rollouts in order. What it drops it counts.

    :param max_staleness: how many versions the weights may have moved on since a rollout was made; None for any.
    :param capacity: how many rollouts may wait; the oldest make room.
    """

    def __init__(self, max_staleness: int | None, capacity: int) -> None:
        self._max_staleness = max_staleness
        self._capacity = capacity
        self._waiting: deque[Rollout] = deque()
        self.dropped_stale = 0
        """Rollouts that were dropped because their weights were too old."""
        self.dropped_full = 0
        """Rollouts that were dropped to make room for newer ones."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, rollout: Rollout) -> None:
        if len(self._waiting) == self._capacity:
            self._waiting.popleft()
            self.dropped_full += 1
        self._waiting.append(rollout)

    def drop_stale(self, current_version: int) -> None:
        """Drop what weights of this version make too old."""
        if self._max_staleness is None:
            return
        fresh = [r for r in self._waiting if current_version - r.weights_version <= self._max_staleness]
        self.dropped_stale += len(self._waiting) - len(fresh)
        self._waiting = deque(fresh)

    def take(self) -> list[Rollout]:
        """All that wait, oldest first."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
