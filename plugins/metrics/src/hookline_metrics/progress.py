"""Shows the progress of a run on stderr: a bar on a terminal, a line every ten seconds elsewhere.

What is shown is in `LiveState`, which `Digest` keeps up to date, and a thread of its own shows it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, Literal, Protocol

from hookline_metrics.collecting import as_scalar

__all__ = ["LiveState", "Progress", "open_progress"]

LINE_SECONDS: Final = 10.0
RATE_WINDOW_SECONDS: Final = 20.0
"""The rate is that of the last so many seconds, so that slow first steps, such as compiling, do not count for long."""
MIN_EPOCH_ENDS: Final = 11
"""The time of an epoch is a mean over at least so many ends, since only about every tenth epoch has an evaluation."""
_SHOWN: Final = threading.Lock()
"""Held while progress is shown, so that only one is shown at a time."""
LOSSES: Final = ("train/loss", "loss", "val_avg_loss")
"""The first of these metrics that a report has is shown as the loss."""


EpochKind = Literal["train", "rollout", "warm start"]
"""Epochs of one kind take about the same time. `train` has no rollouts, `rollout` has them, and `warm start` are the
epochs before the first rollout of a run that has a rollout worker."""

MAX_EPOCH_ENDS: Final = 1000


class LiveState:
    """Plain fields without a lock. Each field is always whole, but two fields may be from different steps."""

    __slots__ = (
        "complete_epochs",
        "epoch",
        "epoch_ends",
        "epoch_kind",
        "lesson",
        "numbers",
        "numbers_step",
        "phase",
        "reward",
        "start_epoch",
        "start_step",
        "step",
        "thread",
        "total_epochs",
        "total_steps",
    )

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        """The training thread. When it has ended, the run is over, even if no event said so."""
        self.start_step = 0
        """The step that this process started at. Above 0 in a resumed run."""
        self.start_epoch = 0
        self.step = 0
        self.epoch: int | None = None
        """None before the first epoch."""
        self.complete_epochs = 0
        """Epochs of the whole run, including those before a resume."""
        self.epoch_kind: EpochKind = "train"
        """The kind of the current epoch."""
        self.epoch_ends: deque[float] = deque(maxlen=MAX_EPOCH_ENDS)
        """When the latest epochs of the current kind ended, by `time.monotonic()`."""
        self.total_epochs: int | None = None
        self.total_steps: int | None = None
        self.phase = "other"
        self.lesson: str | None = None
        self.reward: float | None = None
        self.numbers: Mapping[str, Any] = {}
        """The latest report of a step or a validation, or all of them if the step has several."""
        self.numbers_step = -1

    def enter_epochs(self, kind: EpochKind) -> None:
        """Epochs from now on are of this kind."""
        if kind != self.epoch_kind:
            self.epoch_kind, self.epoch_ends = kind, deque(maxlen=MAX_EPOCH_ENDS)

    def end_epoch(self, epoch: int, now: float) -> None:
        """Record that an epoch is complete."""
        self.complete_epochs = epoch + 1
        self.epoch_ends.append(now)


class Progress(Protocol):
    """Shows the live state of a run. Called from one thread, a few times a second."""

    def show(self, live: LiveState) -> None: ...

    def end(self, live: LiveState) -> None: ...


def open_progress(kind: Literal["auto", "bar", "lines", "off"], stream: IO[str] | None = None) -> Progress | None:
    """The bar or the lines, as the stream allows. None for `off`, or if another progress is shown already."""
    stream = sys.stderr if stream is None else stream
    if kind == "off" or stream is None:  # a process without a console has no stderr
        return None
    # `MetricsHook` may show progress beside the plugin, and two bars would write over each other.
    if not _SHOWN.acquire(blocking=False):
        return None
    if kind == "bar" or (kind == "auto" and stream.isatty()):
        return ProgressBar(stream)
    return ProgressLines(stream)


class TimeEstimate:
    """Estimates the current steps per second and the time left."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._seen: deque[tuple[float, int]] = deque()

    def update(self, live: LiveState) -> None:
        """Add the run's current step."""
        now = self._now()
        if self._seen and self._seen[0][1] < live.start_step:
            self._seen.clear()  # it was seen before it was restored: the steps up to there were not made now
        if not self._seen:
            self._seen.append((self._began, live.start_step))
        self._seen.append((now, live.step))
        while self._seen[1][0] <= now - RATE_WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        return _rate(self._seen)

    def seconds_left(self, live: LiveState) -> float | None:
        """None if the total is not known or too little is complete to estimate from.

        A run without rollouts is estimated from its steps. Any other is estimated from its latest epochs of the
        current kind, since epochs with and without rollouts take different times.
        """
        if live.epoch_kind == "warm start":
            return None  # neither its length nor the time of the epochs after it is known
        if live.total_steps is not None and live.epoch_kind == "train":
            # Without the time before the first step, which includes compiling.
            steady = [seen for seen in self._seen if seen[1] > live.start_step]
            rate, left = _rate(steady), live.total_steps - live.step
            return left / rate if rate > 0 and left > 0 else None
        return self._seconds_of_epochs_left(live)

    def _seconds_of_epochs_left(self, live: LiveState) -> float | None:
        """Estimated from end to end of an epoch, so that the first epoch, which compiles, does not count."""
        now, ends = self._now(), list(live.epoch_ends)
        latest = [end for end in ends if end >= now - RATE_WINDOW_SECONDS]
        ends = latest if len(latest) > MIN_EPOCH_ENDS else ends[-MIN_EPOCH_ENDS:]
        if live.total_epochs is None or live.epoch is None or len(ends) < 2:
            return None
        each = (ends[-1] - ends[0]) / (len(ends) - 1)
        left = live.total_epochs - live.complete_epochs
        in_this_one = min(each, now - ends[-1])
        return left * each - in_this_one if left > 0 else None


def _rate(seen: Sequence[tuple[float, int]]) -> float:
    """Steps per second between the first and the last of these (time, step) pairs."""
    if not seen:
        return 0.0
    (before, first), (now, last) = seen[0], seen[-1]
    return (last - first) / (now - before) if now > before else 0.0


def describe(live: LiveState, estimate: TimeEstimate) -> Iterator[str]:
    """The parts of a progress line, the most important first. Epochs are counted from one here."""
    done = live.start_epoch if live.epoch is None else live.epoch + 1
    yield f"epoch {done}" if live.total_epochs is None else f"epoch {done}/{live.total_epochs}"
    yield f"step {live.step}" if live.total_steps is None else f"step {live.step}/{live.total_steps}"
    yield f"{estimate.rate:.3g}/s"
    left = estimate.seconds_left(live)
    if left:
        yield f"{clock_time(left)} left"
    loss = next((as_scalar(live.numbers[name]) for name in LOSSES if name in live.numbers), None)
    if loss is not None:
        yield f"loss {loss:.4g}"
    if live.reward is not None:
        yield f"reward {live.reward:.4g}"
    if live.lesson is not None:
        yield live.lesson
    if live.phase in ("validation", "evaluation", "checkpoint"):
        yield live.phase


def clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


class ProgressLines:
    """A line every few seconds, and one at the end."""

    def __init__(self, stream: IO[str], now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._estimate = TimeEstimate(now)
        self._due = now() + LINE_SECONDS

    def show(self, live: LiveState) -> None:
        self._estimate.update(live)
        if self._now() >= self._due:
            self._due = self._now() + LINE_SECONDS
            self._print(live)

    def end(self, live: LiveState) -> None:
        self._estimate.update(live)
        self._print(live)
        _SHOWN.release()

    def _print(self, live: LiveState) -> None:
        print(" · ".join(describe(live, self._estimate)), file=self._stream, flush=True)


class ProgressBar:
    """A rich progress bar. What is printed or logged meanwhile appears above it."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(file=stream, force_terminal=True)
        # Drawn only when `show` is called. rich's own refresh thread would draw more often, and drawing holds the
        # GIL, which the training thread needs.
        self._bar = Progress(
            BarColumn(bar_width=min(30, max(6, console.width - 90))),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            auto_refresh=False,
            # Printed text belongs above the bar, unless stdout is a file.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._estimate = TimeEstimate()
        self._task = self._bar.add_task("", total=None)
        self._logging = _LoggingAboveBar()
        self._bar.start()
        self._logging.redirect()

    def show(self, live: LiveState) -> None:
        self._estimate.update(live)
        text = " · ".join(describe(live, self._estimate))
        done, total = live.step, live.total_steps
        if total is None:
            done, total = live.start_epoch if live.epoch is None else live.epoch, live.total_epochs
        self._bar.update(self._task, description=text, completed=done, total=total)
        self._bar.refresh()

    def end(self, live: LiveState) -> None:
        self.show(live)
        self._logging.restore()
        self._bar.stop()
        _SHOWN.release()


class _LoggingAboveBar:
    """Redirects logging handlers while the bar is shown.

    A handler keeps the stream that it was created with, and would write into the bar. rich replaces `sys.stdout` and
    `sys.stderr` by streams that print above the bar, so the handlers write to those instead.
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
