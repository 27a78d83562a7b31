"""`SinkWorker`: one sink, one thread, and a bounded queue that the training thread appends to.

The training thread pays for one `deque.append`. It wakes nobody: the worker looks by itself a few times a second, and
takes all that has come since in one go.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookline_metrics.scalars import as_scalar
from hookline_metrics.sinks.sink import Report, Sink, SinkUnavailableError

__all__ = ["FLUSH_SECONDS", "SinkWorker"]

logger = logging.getLogger("hookline.metrics")

FLUSH_SECONDS: Final = 0.5
"""Between two looks. A report may wait for two of them, so that a kill costs a second and no more."""

CAPACITY: Final = 50_000
"""Reports that may wait for a sink that hangs, some tens of megabytes. More are lost, and counted."""

FLOAT: Final = frozenset({float})


class SinkWorker:
    """Feeds a sink from a thread of its own.

    :param open_sink: opens the sink, on that thread.
    """

    def __init__(self, name: str, open_sink: Callable[[], Sink]) -> None:
        self.name = name
        self.lost = 0
        """Reports that the sink never got."""
        self.error: Exception | None = None
        """What the sink raised last, None once it works again."""
        self._open_sink = open_sink
        self._sink: Sink | None = None
        self._waiting: deque[Report] = deque()
        self._unwritten: list[Report] = []
        self._held_step: int | None = None
        self._is_given_up = False
        self._mentioned: set[str] = set()
        self._ending = threading.Event()
        # A daemon, so that a sink that hangs cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"hookline-metrics-{name}", daemon=True)
        self._thread.start()

    # -- on the training thread -----------------------------------------------------------------------------------

    def put(self, step: int, epoch: int | None, numbers: Mapping[str, Any], now: float) -> None:
        """Have a report written soon. Never waits. `numbers` must not change afterwards."""
        if len(self._waiting) < CAPACITY and not self._is_given_up:
            self._waiting.append(Report(step, epoch, numbers, now))
        else:
            self.lost += 1

    # -- whoever ends the run -------------------------------------------------------------------------------------

    def end(self) -> None:
        """Write what waits, close the sink, end the thread: soon. `join` waits for that."""
        self._ending.set()

    def join(self, deadline: float) -> bool:
        """Wait until the sink is closed, or `time.monotonic()` reaches `deadline`; say whether it is."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    @property
    def is_open(self) -> bool:
        """The sink was opened, and is not closed yet."""
        return self._sink is not None and self._thread.is_alive()

    @property
    def unwritten(self) -> int:
        """Reports that the sink has not got, and those that it never will."""
        return self.lost + len(self._unwritten) + len(self._waiting)

    # -- on the sink's thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._attempt(self._opened)
        while not self._ending.wait(FLUSH_SECONDS):
            self._flush(hold_back=True)
        self._flush(hold_back=False)
        if self._sink is not None:
            self._attempt(self._sink.close)

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = self._open_sink()
        return self._sink

    def _flush(self, *, hold_back: bool) -> None:
        if self._is_given_up:
            self.lost += len(self._waiting)
            self._waiting.clear()
            return
        self._take(hold_back)
        if self._unwritten and self._attempt(lambda: self._opened().write(self._unwritten)):
            self._unwritten = []

    def _take(self, hold_back: bool) -> None:
        """Move what waits over. The newest step is left for the next look: more of it may be on its way."""
        waiting = self._waiting
        count = min(len(waiting), max(0, CAPACITY - len(self._unwritten)))
        if hold_back and count:
            newest = waiting[-1][0]
            if newest != self._held_step:
                self._held_step = newest
                while count and waiting[count - 1][0] == newest:
                    count -= 1
        for _ in range(count):
            report = waiting.popleft()
            # Nearly always: and what is done for each number holds up training, since one lock is for all threads.
            is_plain = type(report.step) is int and FLOAT.issuperset(map(type, report.numbers.values()))
            self._unwritten.append(report if is_plain else self._converted(report))

    def _converted(self, report: Report) -> Report:
        return report._replace(step=int(report.step), numbers=self._scalars(report.numbers))

    def _scalars(self, numbers: Mapping[str, Any]) -> Mapping[str, float]:
        scalars = {}
        for name, value in numbers.items():
            number = as_scalar(value)
            if number is not None:
                scalars[name] = number
            elif value is not None:
                self._mention(f"metric {name!r} is a {type(value).__name__} and no number: it is left out")
        return scalars

    def _attempt(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except SinkUnavailableError as error:
            self.error, self._is_given_up = error, True
            logger.warning("metrics do not go to %s: %s", self.name, error)
            return False
        except Exception as error:
            if self.error is None:
                logger.warning("metrics could not be written to %s, and are tried again: %r", self.name, error)
            self.error = error
            return False
        self.error = None
        return True

    def _mention(self, message: str) -> None:
        if message not in self._mentioned:
            self._mentioned.add(message)
            logger.info(message)
