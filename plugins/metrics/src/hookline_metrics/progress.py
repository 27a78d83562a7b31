"""Shows that a run gets on: a bar on a terminal, a line now and then anywhere else. Both go to stderr."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Final, Literal, Protocol

from hookline_metrics.moment import Moment
from hookline_metrics.scalars import as_scalar

__all__ = ["Progress", "open_progress"]

LINE_SECONDS: Final = 10.0
PACE_SECONDS: Final = 20.0
"""How far back the rate looks: what took long at the beginning, such as compiling, will not come again."""
EPOCHS: Final = 11
"""How many ends of epochs the time of one is taken from, at least: an evaluation comes every ten or so."""
_ONE_AT_A_TIME: Final = threading.Lock()
LOSSES: Final = ("train/loss", "loss", "val_avg_loss")
"""The number that stands for the loss: the first of these that a report has."""


class Progress(Protocol):
    """Shows moments of a run. Called from one thread, a few times a second."""

    def show(self, moment: Moment) -> None: ...

    def end(self, moment: Moment) -> None: ...


def open_progress(kind: Literal["auto", "bar", "lines", "off"], stream: IO[str] | None = None) -> Progress | None:
    """The bar or the lines, whichever suits the stream; None for `off`."""
    stream = sys.stderr if stream is None else stream
    if kind == "off" or stream is None:  # a process without a console has no stderr
        return None
    # A hook in the older style may show progress beside the plugin, and two would write over each other.
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        return None
    if kind == "bar" or (kind == "auto" and stream.isatty()):
        return ProgressBar(stream)
    return ProgressLines(stream)


class Pace:
    """Steps per second of late, and how long the rest will take."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._seen: deque[tuple[float, int]] = deque()

    def look(self, moment: Moment) -> None:
        """Take note of where the run is now."""
        now = self._now()
        if not self._seen:
            self._seen.append((self._began, moment.start_step))
        self._seen.append((now, moment.step))
        while self._seen[1][0] <= now - PACE_SECONDS:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        return _rate(self._seen)

    def seconds_left(self, moment: Moment) -> float | None:
        """None as long as there is nothing to go by: the total is not known, or too little is complete.

        By the steps that are left where a run does nothing but take steps, else by its epochs: those of the kind that
        it has now, since a warm start, or epochs with rollouts, have a speed of their own.
        """
        if moment.epoch_kind == "warm start":
            return None  # when it will be over, and how long the epochs after it take, is not known
        if moment.total_steps is not None and moment.epoch_kind == "train":
            # What comes before the first step is done, such as compiling, will not come again.
            steady = [seen for seen in self._seen if seen[1] > moment.start_step]
            rate, left = _rate(steady), moment.total_steps - moment.step
            return left / rate if rate > 0 and left > 0 else None
        return self._seconds_of_epochs_left(moment)

    def _seconds_of_epochs_left(self, moment: Moment) -> float | None:
        """By the time from one end of an epoch to the next, so that the first, which compiles, has no part in it."""
        now, ends = self._now(), list(moment.epoch_ends)
        latest = [end for end in ends if end >= now - PACE_SECONDS]
        ends = latest if len(latest) > EPOCHS else ends[-EPOCHS:]
        if moment.total_epochs is None or moment.epoch is None or len(ends) < 2:
            return None
        each = (ends[-1] - ends[0]) / (len(ends) - 1)
        left = moment.total_epochs - moment.complete_epochs
        in_this_one = min(each, now - ends[-1])
        return left * each - in_this_one if left > 0 else None


def _rate(seen: Sequence[tuple[float, int]]) -> float:
    """Steps per second between the first and the last of these looks."""
    if not seen:
        return 0.0
    (before, first), (now, last) = seen[0], seen[-1]
    return (last - first) / (now - before) if now > before else 0.0


def describe(moment: Moment, pace: Pace) -> Iterator[str]:
    """All that is known of the moment, the most important first. People count epochs from one."""
    done = 0 if moment.epoch is None else moment.epoch + 1
    yield f"epoch {done}" if moment.total_epochs is None else f"epoch {done}/{moment.total_epochs}"
    yield f"step {moment.step}" if moment.total_steps is None else f"step {moment.step}/{moment.total_steps}"
    yield f"{pace.rate:.3g}/s"
    left = pace.seconds_left(moment)
    if left:
        yield f"{clock_time(left)} left"
    loss = next((as_scalar(moment.numbers[name]) for name in LOSSES if name in moment.numbers), None)
    if loss is not None:
        yield f"loss {loss:.4g}"
    if moment.reward is not None:
        yield f"reward {moment.reward:.4g}"
    if moment.lesson is not None:
        yield moment.lesson
    if moment.phase in ("validation", "evaluation", "checkpoint"):
        yield moment.phase


def clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


class ProgressLines:
    """A line every few seconds, and one at the end."""

    def __init__(self, stream: IO[str], now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._pace = Pace(now)
        self._due = now() + LINE_SECONDS

    def show(self, moment: Moment) -> None:
        self._pace.look(moment)
        if self._now() >= self._due:
            self._due = self._now() + LINE_SECONDS
            self._print(moment)

    def end(self, moment: Moment) -> None:
        self._pace.look(moment)
        self._print(moment)
        _ONE_AT_A_TIME.release()

    def _print(self, moment: Moment) -> None:
        print(" · ".join(describe(moment, self._pace)), file=self._stream, flush=True)


class ProgressBar:
    """A bar of rich's. What is printed or logged meanwhile is shown above it."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(file=stream, force_terminal=True)
        # It is drawn when `show` is called and at no other time: rich's own thread would draw it more often than
        # anybody looks, and drawing takes the interpreter from the training thread.
        self._bar = Progress(
            BarColumn(bar_width=min(30, max(6, console.width - 90))),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            auto_refresh=False,
            # What a program prints belongs above the bar, unless it goes to a file.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._pace = Pace()
        self._task = self._bar.add_task("", total=None)
        self._logging = _LoggingAboveTheBar()
        self._bar.start()
        self._logging.redirect()

    def show(self, moment: Moment) -> None:
        self._pace.look(moment)
        text = " · ".join(describe(moment, self._pace))
        done, total = moment.step, moment.total_steps
        if total is None:
            done, total = moment.epoch or 0, moment.total_epochs
        self._bar.update(self._task, description=text, completed=done, total=total)
        self._bar.refresh()

    def end(self, moment: Moment) -> None:
        self.show(moment)
        self._logging.restore()
        self._bar.stop()
        _ONE_AT_A_TIME.release()


class _LoggingAboveTheBar:
    """Handlers of logging hold the stream that was there when they were made, past which the bar knows nothing.

    For as long as the bar is shown they write to what stands in that stream's place, which moves the bar down first.
    """

    def __init__(self) -> None:
        self._before = {id(stream): name for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))}
        self._moved: list[tuple[logging.StreamHandler[Any], Any, Any]] = []

    def redirect(self) -> None:
        for handler in _stream_handlers():
            name = self._before.get(id(handler.stream))
            replacement = getattr(sys, name) if name else None
            if replacement is not None and replacement is not handler.stream:
                self._moved.append((handler, handler.stream, replacement))
                handler.setStream(replacement)

    def restore(self) -> None:
        for handler, before, replacement in self._moved:
            if handler.stream is replacement:
                handler.setStream(before)
        self._moved = []


def _stream_handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for logger in loggers:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                yield handler
