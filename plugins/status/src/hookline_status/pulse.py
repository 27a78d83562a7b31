"""Heartbeats of a run: one every so many seconds, whatever the training thread does, from its begin to its end.

A heartbeat says that the process lives, that its training thread has not ended, and that the run is not over. It does
not say that the run gets on: a batch of minutes and a deadlock look the same from outside. So each carries
`seconds_since_progress`, the time since the last event of the run, for the receiver to judge.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

__all__ = ["Phase", "Pulse"]

Phase = Literal["training", "validation"]


class Pulse:
    """The life of one run. The training thread tells what happens; another asks now and then what is due.

    :param seconds: between two heartbeats of a phase.
    :param now: tells the time in seconds.
    """

    def __init__(self, component: str, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.component = component
        self._seconds = seconds
        self._now = now
        self._phase: Phase | None = None
        self._entered: dict[Phase, None] = {}
        self._moved_at = 0.0
        self._thread: threading.Thread | None = None
        self._latest: dict[Phase, Mapping[str, Any]] = {}
        self._beaten_at: dict[Phase, float] = {}  # of the thread that asks

    def move(self, phase: Phase, report_data: Mapping[str, Any] | None = None) -> None:
        """Something has happened in this phase of the run. The report goes with the next heartbeats."""
        if report_data is not None:
            self._latest[phase] = report_data
        self._moved_at = self._now()
        self._thread = threading.current_thread()
        self._phase = phase
        self._entered[phase] = None

    def leave(self) -> None:
        """The phase is over, and what comes next is not told of here."""
        self._phase = None

    def rest(self) -> None:
        """The run is over: there is no heartbeat until something happens again."""
        self._phase = None
        self._entered.clear()

    def due(self) -> Iterator[tuple[Phase, dict[str, Any]]]:
        """The phases whose heartbeat is due, each with its latest report: that which the run is in, and those that it
        was in since the last look."""
        phase, thread, now = self._phase, self._thread, self._now()
        entered = [self._entered.popitem()[0] for _ in range(len(self._entered))]
        if thread is None or not thread.is_alive():
            return
        for alive in dict.fromkeys([*reversed(entered), *([] if phase is None else [phase])]):
            if alive not in self._beaten_at or now >= self._beaten_at[alive] + self._seconds:
                self._beaten_at[alive] = now
                idle = round(max(0.0, now - self._moved_at), 3)
                yield alive, {**self._latest.get(alive, {}), "seconds_since_progress": idle}
