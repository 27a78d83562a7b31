"""`SinkWorker`: one sink, one thread, and a bounded queue that the training thread appends to.

The training thread pays for one `deque.append`. It wakes no thread. The worker looks by itself a few times a second and
takes all that has come since in one go. Only a flush, which a checkpoint asks for, has it look at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from hookline_hookspecs.errors import describe_error
from hookline_metrics.scalars import as_scalar
from hookline_metrics.sinks.sink import Report, Sink, SinkUnavailableError

__all__ = ["FLUSH_SECONDS", "SinkWorker"]

logger = logging.getLogger("hookline.metrics")

FLUSH_SECONDS: Final = 0.5
"""Between two looks. A report may wait for two of them, so that a kill costs a second and no more."""

CAPACITY: Final = 50_000
"""Reports that may wait for a sink that hangs, some tens of megabytes. More are lost, and counted."""

FLOAT: Final = frozenset({float})
GREATEST_STEP: Final = 2**63 - 1
"""More than this is a whole number to Python, and to no database."""


class Flush:
    """A wish that all that was put before it be written now, and whether it is."""

    def __init__(self) -> None:
        self._is_written = False
        self._answered = threading.Event()

    def answer(self, is_written: bool) -> None:
        self._is_written = is_written
        self._answered.set()

    def wait(self, seconds: float) -> bool:
        """Whether all is written, waiting at most so long for the sink's attempt."""
        return self._answered.wait(seconds) and self._is_written


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
        self._flushes: deque[Flush] = deque()
        self._is_ending = False
        self._wake = threading.Event()
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

    def flush(self) -> Flush:
        """Have all that was put so far written now. Never waits."""
        flush = Flush()
        self._flushes.append(flush)
        self._wake.set()
        if not self._thread.is_alive():
            flush.answer(self.unwritten == 0)
        return flush

    # -- the end of the run ---------------------------------------------------------------------------------------

    def end(self) -> None:
        """Write what waits, close the sink, end the thread: soon. `join` waits for that."""
        self._is_ending = True
        self._wake.set()

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
        is_last = False
        while not is_last:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            is_last = self._is_ending  # asked first: what came before the end is then written
            self._write_all(hold_back=not is_last)
        if self._sink is not None:
            self._attempt(self._sink.close)
        self._answer(self._flushes, is_written=self.unwritten == 0)

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = self._open_sink()
        return self._sink

    def _write_all(self, *, hold_back: bool) -> None:
        # Taken before the reports are: those that were put before a flush was asked for are then among them.
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        if self._is_given_up:
            self.lost += len(self._waiting)
            self._waiting.clear()
        else:
            self._take(hold_back and not flushes)
        has_all = len(self._unwritten) < CAPACITY and not self._is_given_up
        if self._unwritten and self._attempt(lambda: self._opened().write(self._unwritten)):
            self._unwritten = []
        self._answer(flushes, is_written=has_all and not self._unwritten)

    def _answer(self, flushes: Iterable[Flush], *, is_written: bool) -> None:
        for flush in flushes:
            flush.answer(is_written)

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
            if not (
                type(report.step) is int
                and -GREATEST_STEP <= report.step <= GREATEST_STEP
                and FLOAT.issuperset(map(type, report.numbers.values()))
            ):
                converted = self._converted(report)
                if converted is None:
                    continue
                report = converted
            self._unwritten.append(report)

    def _converted(self, report: Report) -> Report | None:
        step = _as_whole_number(report.step)
        if step is None:
            self.lost += 1
            self._mention(f"a report of step {report.step!r:.50} is left out: a step is a whole number below 2**63")
            return None
        return report._replace(step=step, numbers=self._scalars(report.numbers))

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
                logger.warning(
                    "metrics could not be written to %s, and are tried again: %s", self.name, describe_error(error)
                )
            self.error = error
            return False
        self.error = None
        return True

    def _mention(self, message: str) -> None:
        if message not in self._mentioned:
            self._mentioned.add(message)
            logger.info(message)


def _as_whole_number(value: Any) -> int | None:
    try:
        number = int(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return number if abs(number) <= GREATEST_STEP else None
