"""Which scheduled implementations of an event are due, at the price of one comparison when none is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from hookline.plugins.implementations import Implementation

__all__ = ["EventClock"]

NEVER: Final = sys.maxsize


class EventClock:
    """The schedules of one event's implementations.

    It keeps `_low` and `_due` in the emitter's own globals: while `_low <= now < _due` nothing is due and the
    emitter need not ask. A clock that went backwards (a run resumed in the same process) falls below `_low`.
    """

    __slots__ = ("_emitter_globals", "_scheduled")

    def __init__(self, scheduled: Sequence[Implementation], emitter_globals: dict[str, Any]) -> None:
        self._scheduled = scheduled
        self._emitter_globals = emitter_globals
        self._set_window()

    def advance(self, now: int) -> frozenset[Implementation]:
        """Look at the clock for all schedules, and return the implementations that are due."""
        ready = []
        for implementation in self._scheduled:
            if now < implementation.last_look:
                implementation.last_look = now - 1
            due = _next_due(implementation)
            if due <= now:
                ready.append(implementation)
            implementation.last_look = now
        self._set_window()
        return frozenset(ready)

    def _set_window(self) -> None:
        self._emitter_globals["_low"] = max((i.last_look for i in self._scheduled), default=-1)
        self._emitter_globals["_due"] = min(map(_next_due, self._scheduled), default=NEVER)


def _next_due(implementation: Implementation) -> int:
    assert implementation.schedule is not None
    due = implementation.schedule.next_after(implementation.last_look)
    return NEVER if due is None else due
