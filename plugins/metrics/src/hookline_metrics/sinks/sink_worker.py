"""`SinkWorker`: a thread that writes to one sink from a bounded queue.

Reports are appended to a deque, and no thread is woken. The worker polls the queue once a second and writes
all new reports in one call. A flush, which a checkpoint needs, makes it write at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from hookline_hookspecs import CheckpointRecord, ReplayRecord
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.sinks import Report, Samples, Sink, SinkUnavailableError
from hookline_metrics.collecting import as_scalar
from hookline_metrics.sinks.condenser import FLOAT, WINDOW_SECONDS, Condenser

__all__ = ["FLUSH_SECONDS", "Item", "SinkWorker"]

logger = logging.getLogger("hookline.metrics")

FLUSH_SECONDS: Final = WINDOW_SECONDS
"""Seconds between two polls. A report waits for two of them at most, so a kill loses at most the last two seconds."""

CAPACITY: Final = 50_000
"""Reports that are queued while a sink hangs, some tens of megabytes. Further ones are dropped and counted."""

MAX_ITEMS: Final = 100
"""Samples, replays and checkpoints that are queued while a sink hangs. Further ones are dropped."""

Item: TypeAlias = Samples | ReplayRecord | CheckpointRecord

MAX_STEP: Final = 2**63 - 1
"""The largest integer that SQLite can store."""


class Flush:
    """A request to write now all reports that were queued before it."""

    def __init__(self) -> None:
        self._is_written = False
        self._done = threading.Event()

    def finish(self, is_written: bool) -> None:
        self._is_written = is_written
        self._done.set()

    def wait(self, seconds: float) -> bool:
        """Wait until the sink has tried to write, at most so long. Returns whether all reports are written."""
        return self._done.wait(seconds) and self._is_written


class SinkWorker:
    """Writes reports to a sink on its own thread.

    :param open_sink: opens the sink, on that thread.
    :param every_report: pass on every report, however fast they come.
    :param before_taking: called on that thread before it takes the queued reports. It may queue more.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], Sink],
        *,
        every_report: bool = False,
        before_taking: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._before_taking = before_taking
        self._condenser = None if every_report else Condenser(self._converted)
        self.lost = 0
        """How many reports were dropped."""
        self.error: BaseException | None = None
        """The last error of the sink. None once it works again, and has all reports."""
        self._open_sink = open_sink
        self._sink: Sink | None = None
        self._waiting: deque[Report] = deque()
        self._unwritten: list[Report] = []
        self._held_step: int | None = None
        self._is_unavailable = False
        self._logged: set[str] = set()
        self._items: deque[Item] = deque()
        self._lost_items = 0
        self._flushes: deque[Flush] = deque()
        self._is_ending = False
        self._wake = threading.Event()
        # A daemon thread, so that a sink that hangs cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"hookline-metrics-{name}", daemon=True)
        self._thread.start()

    # -- on other threads -----------------------------------------------------------------------------------------

    def put(self, report: Report) -> None:
        """Queue a report. Its values may be of any type. Never blocks."""
        if len(self._waiting) < CAPACITY:
            self._waiting.append(report)
        else:
            self.lost += 1

    def put_item(self, item: Item) -> None:
        """Queue samples, a replay or a checkpoint. Never blocks."""
        if len(self._items) < MAX_ITEMS and not self._is_unavailable:
            self._items.append(item)
        else:
            self._lost_items += 1

    def flush(self) -> Flush:
        """Request that all queued reports are written now. Never blocks."""
        flush = Flush()
        self._flushes.append(flush)
        self._wake.set()
        if not self._thread.is_alive():
            flush.finish(self.unwritten == 0)
        return flush

    # -- the end of the run ---------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ask the thread to write the rest, close the sink and end. `join` waits for that."""
        self._is_ending = True
        self._wake.set()

    def join(self, deadline: float) -> bool:
        """Wait until the sink is closed or `time.monotonic()` reaches `deadline`. Returns whether it is closed."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    @property
    def is_busy(self) -> bool:
        """Whether the sink is being opened, written to or closed, and has had no error since it last worked."""
        return self._thread.is_alive() and self.error is None

    @property
    def unwritten(self) -> int:
        """How many reports are not written, including the dropped ones."""
        return self.lost + len(self._unwritten) + len(self._waiting)

    # -- on the sink's thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._attempt(self._opened)
        is_last = False
        while not is_last:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            is_last = self._is_ending  # read before writing, so that all reports before the end are written
            self._write_all(hold_back=not is_last)
            self._pass_items()
        if self._sink is not None:
            self._attempt(self._sink.close)
        lost = self._lost_items + len(self._items)
        if lost and not self._is_unavailable:
            logger.warning("samples, replays and checkpoints not stored in %s: %d", self.name, lost)
        self._finish(self._flushes, is_written=self.unwritten == 0)

    def _opened(self) -> Sink:
        if self._sink is None:
            self._sink = self._open_sink()
        return self._sink

    def _write_all(self, *, hold_back: bool) -> None:
        # Flushes are taken before reports, so that the reports queued before a flush are among those written.
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        self._before_taking()
        if self._is_unavailable:
            self.lost += len(self._waiting)
            self._waiting.clear()
        else:
            self._take(hold_back and not flushes)
        has_all = len(self._unwritten) < CAPACITY and not self._is_unavailable
        if self._unwritten:
            self._attempt(self._write)
        self._finish(flushes, is_written=has_all and not self._unwritten)

    def _write(self) -> None:
        self._opened().write(self._unwritten)
        self._unwritten = []

    def _pass_items(self) -> None:
        while self._items and not self._is_unavailable and self._attempt(self._opened):
            item = self._items.popleft()
            try:
                _pass_item(self._opened(), item)
            except (SinkUnavailableError, ImportError) as error:
                self._give_up(error)
            except BaseException as error:
                self._lost_items += 1
                what = f"{type(item).__name__} of step {item.step}"
                logger.warning("%s was not stored in %s: %s", what, self.name, describe_error(error))

    def _finish(self, flushes: Iterable[Flush], *, is_written: bool) -> None:
        for flush in flushes:
            flush.finish(is_written)

    def _take(self, hold_back: bool) -> None:
        """Move queued reports to `_unwritten`. The newest step waits for the next poll, as more of it may follow."""
        waiting = self._waiting
        count = min(len(waiting), max(0, CAPACITY - len(self._unwritten)))
        if hold_back and count:
            newest = waiting[-1][0]
            if newest != self._held_step:
                self._held_step = newest
                while count and waiting[count - 1][0] == newest:
                    count -= 1
        taken = []
        for _ in range(count):
            report = waiting.popleft()
            # Nearly all reports need no conversion. Work for each number holds the GIL and so delays training.
            if type(report.step) is not int or not -MAX_STEP <= report.step <= MAX_STEP:
                step = _as_step(report.step)
                if step is None:
                    self.lost += 1
                    self._log_once(
                        f"a report of step {report.step!r:.50} is left out: a step must be an integer below 2**63"
                    )
                    continue
                report = report._replace(step=step)
            taken.append(report)
        self._unwritten.extend(
            map(self._converted, taken) if self._condenser is None else self._condenser.condense(taken)
        )

    def _converted(self, report: Report) -> Report:
        """The report with all its values as floats, and without what is no number."""
        if FLOAT.issuperset(map(type, report.numbers.values())):
            return report
        scalars = {}
        for name, value in report.numbers.items():
            number = as_scalar(value)
            if number is not None:
                scalars[name] = number
            elif value is not None:
                self._log_once(f"metric {name!r} is left out: it is a {type(value).__name__}, not a number")
        return report._replace(numbers=scalars)

    def _attempt(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except (SinkUnavailableError, ImportError) as error:
            self._give_up(error)
            return False
        except BaseException as error:  # also SystemExit, which would end this thread without a word
            if self.error is None:
                logger.warning("metrics could not be written to %s, trying again: %s", self.name, describe_error(error))
            self.error = error
            return False
        if not self._unwritten:  # else it can be opened or closed, and still not be written to
            self.error = None
        return True

    def _give_up(self, error: Exception) -> None:
        self.error, self._is_unavailable = error, True
        message = error if isinstance(error, SinkUnavailableError) else describe_error(error)
        logger.warning("metrics are not written to %s: %s", self.name, message)

    def _log_once(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            logger.info(message)


def _pass_item(sink: Sink, item: Item) -> None:
    match item:
        case Samples():
            sink.write_samples(item.redacted())
        case ReplayRecord():
            sink.write_replay(item)
        case CheckpointRecord():
            sink.write_checkpoint(item)


def _as_step(value: Any) -> int | None:
    try:
        number = int(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return number if abs(number) <= MAX_STEP else None
