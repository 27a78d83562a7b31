"""Decides when the heartbeats of a run are due, and what is in them.

Heartbeats are sent at a fixed interval from the start of a run to its end, by a thread other than the training thread.
They show that the process and its training thread are alive. They do not show that the run makes progress, since a long
batch and a deadlock look the same from outside. So each has `seconds_since_progress`, the time since the last event of
the run, and the receiver can set a limit on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

__all__ = ["Heartbeat", "Phase"]

Phase = Literal["training", "validation"]


class Heartbeat:
    """The heartbeats of one run. The training thread calls `mark_progress`, another thread polls `due`.

    :param interval: seconds between two heartbeats of a phase.
    :param now: the clock, in seconds.
    """

    def __init__(self, component: str, interval: float, now: Callable[[], float] = time.monotonic) -> None:
        self.component = component
        self._interval = interval
        self._now = now
        self._phase: Phase | None = None
        self._entered: dict[Phase, None] = {}
        self._progress_at = 0.0
        self._thread: threading.Thread | None = None
        self._latest: dict[Phase, Mapping[str, Any]] = {}
        self._sent_at: dict[Phase, float] = {}  # used by the polling thread only

    def mark_progress(self, phase: Phase, report_data: Mapping[str, Any] | None = None) -> None:
        """Record an event in this phase. The report is part of the next heartbeats."""
        if report_data is not None:
            self._latest[phase] = report_data
        self._progress_at = self._now()
        self._thread = threading.current_thread()
        self._phase = phase
        self._entered[phase] = None

    def leave_phase(self) -> None:
        """End the phase. One more heartbeat of it may be due, then there are none until the next event."""
        self._phase = None

    def pause(self) -> None:
        """End the run. Unlike `leave_phase`, heartbeats that are due now are not sent either."""
        self._phase = None
        self._entered.clear()

    def due(self) -> Iterator[tuple[Phase, dict[str, Any]]]:
        """The phases whose heartbeat is due, each with its latest report.

        These are the current phase, and all phases since the last call.
        """
        phase, thread, now = self._phase, self._thread, self._now()
        entered = [self._entered.popitem()[0] for _ in range(len(self._entered))]
        if thread is None or not thread.is_alive():
            return
        for active in dict.fromkeys([*reversed(entered), *([] if phase is None else [phase])]):
            if active not in self._sent_at or now >= self._sent_at[active] + self._interval:
                self._sent_at[active] = now
                idle = round(max(0.0, now - self._progress_at), 3)
                yield active, {**self._latest.get(active, {}), "seconds_since_progress": idle}
