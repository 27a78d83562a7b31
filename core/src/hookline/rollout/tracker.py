"""`Tracker`: numbers that a worker notes down until the driver, which owns all sinks, takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Entry", "Tracker"]


@dataclass(frozen=True)
class Entry:
    """Metrics that were logged together."""

    step: int
    metrics: Mapping[str, Any]


class Tracker:
    """Keeps what was logged since it was last drained, the latest entries if nobody drains it."""

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
        """The entries that nobody has taken yet."""
        entries = list(self._entries)
        self._entries.clear()
        return entries
