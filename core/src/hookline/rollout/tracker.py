"""`Tracker`: holds the metrics that hooks log on a worker until they are collected."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hookline_hookspecs import TrainerState, hookimpl

__all__ = ["Entry", "TrackedNumbers", "Tracker"]


@dataclass(frozen=True)
class Entry:
    """Metrics that were logged together."""

    step: int
    metrics: Mapping[str, Any]


class Tracker:
    """Keeps the metrics logged since the last `drain`, up to `capacity` entries."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._entries: deque[Entry] = deque(maxlen=capacity)
        self.latest: dict[str, Any] = {}
        """The latest value of each metric."""

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries)

    def log(self, metrics: Mapping[str, Any], *, step: int) -> None:
        self._entries.append(Entry(step, dict(metrics)))
        self.latest.update(metrics)

    def drain(self) -> list[Entry]:
        """Remove and return all entries."""
        entries = list(self._entries)
        self._entries.clear()
        return entries


class TrackedNumbers:
    """A plugin that reports a tracker's metrics in `collect_metrics`.

    It leaves out evaluation scores, which the metrics plugin reads from the state.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._reported: tuple[tuple[int, int] | None, dict[str, Any]] = (None, {})

    @hookimpl
    def collect_metrics(self, state: TrainerState) -> Mapping[str, Any]:
        moment = state.epoch, state.step
        logged = {name: value for entry in self._tracker.drain() for name, value in entry.metrics.items()}
        # Several plugins may collect at the same step, and all must get the same numbers.
        before = self._reported[1] if moment == self._reported[0] else {}
        numbers = {name: value for name, value in logged.items() if name not in state.eval_scores}
        self._reported = moment, {**before, **numbers}
        return self._reported[1]
