"""`Recording`: what the plugin keeps open for the time of one run."""

from __future__ import annotations

import atexit
import logging
import pkgutil
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from hookline_metrics.companion import Companion
from hookline_metrics.moment import Moment
from hookline_metrics.options import Options
from hookline_metrics.progress import open_progress
from hookline_metrics.sinks.sink import OpenSink, Run, Sink, SinkUnavailableError
from hookline_metrics.sinks.worker import SinkWorker

__all__ = ["LostReportsError", "Recording"]

logger = logging.getLogger("hookline.metrics")

END_SECONDS: Final = 4.0
"""How long the end of a run waits for what is still to be written: less than the plugins have in all."""

EXIT_SECONDS: Final = 20.0
"""How long the process waits for a sink that is at work still, such as an upload."""


class LostReportsError(RuntimeError):
    """Reports did not reach a sink."""


class Recording:
    """The sinks of one run and the companion thread.

    :param run: None for a run that leaves no files: it has no sinks.
    """

    def __init__(self, run: Run | None, options: Options) -> None:
        self.run = run
        self.moment = Moment()
        self._workers = [] if run is None else [SinkWorker(name, partial(o, run)) for name, o in _sinks(options)]
        self._puts = [worker.put for worker in self._workers]
        self._companion = Companion(
            self.moment,
            None if run is None else run.folder,
            open_progress(options.progress),
            options.system_every,
            self._record_now,
        )
        self._is_over = False
        # Whoever never says that the run is over still gets all that was reported.
        atexit.register(self._end_at_exit)

    def record(self, step: int, epoch: int | None, numbers: Mapping[str, Any]) -> None:
        """Have numbers written soon. Never waits. `numbers` must not change afterwards."""
        now = time.time()
        for put in self._puts:
            put(step, epoch, numbers, now)

    def _record_now(self, numbers: Mapping[str, float]) -> None:
        self.record(self.moment.step, self.moment.epoch, numbers)

    def end(self) -> Iterator[str]:
        """End everything; yields the name of each sink once it is done, and raises when one has lost something."""
        if self._is_over:
            return
        self._is_over = True
        deadline = time.monotonic() + END_SECONDS
        self._companion.end(deadline)
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            if worker.join(deadline):
                yield worker.name
        lost = [
            f"{worker.name} has not got {worker.unwritten} reports ({worker.error or 'it is not done yet'})"
            for worker in self._workers
            if worker.unwritten
        ]
        if lost:
            raise LostReportsError("; ".join(lost))

    def _end_at_exit(self) -> None:
        try:
            list(self.end())
        except LostReportsError as error:
            logger.warning("%s", error)
        for worker in self._workers:
            if worker.is_open:
                worker.join(time.monotonic() + EXIT_SECONDS)

    def forget(self) -> None:
        """Nothing of the run is open any more."""
        if not any(worker.is_open for worker in self._workers):
            atexit.unregister(self._end_at_exit)


def _sinks(options: Options) -> Iterator[tuple[str, OpenSink]]:
    """The sinks that are wanted. Each is imported on its own thread."""
    yield "stats.sqlite", _built_in("sqlite:SQLiteSink")
    if options.csv:
        yield "metrics.csv", _built_in("text_files:CSVSink")
    if options.jsonl:
        yield "metrics.jsonl", _built_in("text_files:JSONLinesSink")
    if options.wandb != "off":
        yield "wandb", _open_wandb(options)
    for name in options.sinks:
        yield name, partial(_open_named, name)


def _built_in(name: str) -> OpenSink:
    return partial(_open_named, f"hookline_metrics.sinks.{name}")


def _open_named(name: str, run: Run) -> Sink:
    try:
        make = pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise SinkUnavailableError(f"the option `sinks` names it, and it cannot be imported: {error}") from error
    sink: Sink = make(run)
    return sink


def _open_wandb(options: Options) -> OpenSink:
    def open_sink(run: Run) -> Sink:
        from hookline_metrics.sinks.wandb_run import open_wandb

        return open_wandb(run, options)

    return open_sink
