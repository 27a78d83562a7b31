"""Means of numbers that come in one dictionary at a time."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["RunningMeans"]


class RunningMeans:
    """The mean of each number over those of the dictionaries that had it."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, numbers: Mapping[str, float]) -> None:
        sums, counts = self._sums, self._counts
        for name, value in numbers.items():
            sums[name] = sums.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        """The means so far. The next ones begin anew."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means
