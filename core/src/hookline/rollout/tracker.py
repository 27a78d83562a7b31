"""`Tracker`: numbers that hooks note down with a worker until the driver, which owns all sinks, takes them."""

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
    """Keeps what was logged since it was last drained; the latest entries where it is not drained."""

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
        """The entries that were not taken yet."""
        entries = list(self._entries)
        self._entries.clear()
        return entries


class TrackedNumbers:
    """A tracker as a plugin: what was logged since the last report is among the numbers of the next.

    Scores of evaluations are not: they are in the state, where the metrics plugin finds them.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._reported: tuple[tuple[int, int] | None, dict[str, Any]] = (None, {})

    @hookimpl
    def collect_metrics(self, state: TrainerState) -> Mapping[str, Any]:
        moment = state.epoch, state.step
        logged = {name: value for entry in self._tracker.drain() for name, value in entry.metrics.items()}
        # Several may gather the numbers of one moment, and all are told the same.
        before = self._reported[1] if moment == self._reported[0] else {}
        numbers = {name: value for name, value in logged.items() if name not in state.eval_scores}
        self._reported = moment, {**before, **numbers}
        return self._reported[1]
