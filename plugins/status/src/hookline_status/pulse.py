"""Heartbeats that follow the progress of a run, and so stop when it hangs.

The training thread counts what it sees; another thread looks at the counts now and then, and only a count that has
moved makes a heartbeat. A plain timer would go on beating beside a training thread that is stuck for ever.

An evaluation may be one long call without a single event in it. While one is under way the processor time of the
training thread counts as progress too: a thread that is stuck in a lock or on a socket uses none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

__all__ = ["Phase", "Pulse"]

Phase = Literal["training", "validation"]

LEAST_PROCESSOR_SECONDS: Final = 0.001


class Pulse:
    """The progress of one run.

    :param seconds: how long to wait at least between two heartbeats of a phase, for the phases that have any.
    """

    def __init__(self, component: str, seconds: Mapping[Phase, float]) -> None:
        self.component = component
        self._seconds = seconds
        self._moves: dict[Phase, int] = dict.fromkeys(seconds, 0)
        self._latest: dict[Phase, Mapping[str, Any]] = {}
        self._processor_clock: int | None = None
        # Of the thread that looks.
        self._seen: dict[Phase, int] = dict.fromkeys(seconds, 0)
        self._beaten_at: dict[Phase, float] = {}
        self._processor_seen = 0.0

    # -- on the training thread -----------------------------------------------------------------------------------

    def move(self, phase: Phase, report_data: Mapping[str, Any] | None = None) -> None:
        """Something has happened. The report goes with the next heartbeat."""
        if report_data is not None:
            self._latest[phase] = report_data
        self._moves[phase] += 1

    def begin_evaluation(self) -> None:
        """From now on what the calling thread computes is progress."""
        self.move("validation")
        clock_of = getattr(time, "pthread_getcpuclockid", None)  # not every system has clocks for threads
        if clock_of is not None:
            clock = clock_of(threading.get_ident())
            self._processor_seen = time.clock_gettime(clock)
            self._processor_clock = clock

    def end_evaluation(self) -> None:
        self._processor_clock = None
        self.move("validation")

    # -- on the thread that looks ---------------------------------------------------------------------------------

    def due(self, now: float) -> Iterator[tuple[Phase, dict[str, Any]]]:
        """The phases whose heartbeat is due, each with its latest report."""
        for phase, seconds in self._seconds.items():
            if phase in self._beaten_at and now < self._beaten_at[phase] + seconds:
                continue
            moves = self._moves[phase]
            if moves != self._seen[phase] or (phase == "validation" and self._has_computed()):
                self._seen[phase], self._beaten_at[phase] = moves, now
                yield phase, dict(self._latest.get(phase, {}))

    def rest(self) -> None:
        """The run is over: what has moved until now makes no heartbeat any more."""
        self._seen.update(self._moves)
        self._processor_clock = None

    def _has_computed(self) -> bool:
        """Whether an evaluation has used the processor since the last time that this was so."""
        clock = self._processor_clock
        if clock is None:
            return False
        try:
            seconds = time.clock_gettime(clock)
        except OSError:
            return False  # the thread has ended
        if seconds - self._processor_seen < LEAST_PROCESSOR_SECONDS:
            return False
        self._processor_seen = seconds
        return True
