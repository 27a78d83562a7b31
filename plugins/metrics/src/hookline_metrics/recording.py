"""`Recording`: what is kept open for the time of one run."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hookline_metrics.companion import Companion
from hookline_metrics.moment import Moment
from hookline_metrics.names import NameCheck
from hookline_metrics.options import Options
from hookline_metrics.progress import open_progress
from hookline_metrics.sinks.sink import DATABASE, Sink
from hookline_metrics.sinks.worker import SinkWorker

__all__ = ["LostReportsError", "Recording"]

logger = logging.getLogger("hookline.metrics")

END_SECONDS: Final = 4.0
"""How long the end of a run waits for what is still to be written: less than the plugins have in all."""

FLUSH_WAIT_SECONDS: Final = 10.0
"""How long a checkpoint waits for the database: longer than it waits for the lock of another program."""

EXIT_SECONDS: Final = 20.0
"""How long the process waits for a sink that is still at work, such as an upload."""


class LostReportsError(RuntimeError):
    """Reports did not reach a sink."""


class Recording:
    """The sinks of one run, each with its thread, and the companion thread.

    :param folder: the run's folder, None for a run that leaves no files.
    :param sinks: names for messages, and what opens each sink.
    """

    def __init__(self, folder: Path | None, sinks: Sequence[tuple[str, Callable[[], Sink]]], options: Options) -> None:
        self.folder = folder
        self.moment = Moment()
        self._workers = [SinkWorker(name, open_sink) for name, open_sink in sinks]
        self._puts = [worker.put for worker in self._workers]
        self._names = NameCheck()
        progress = open_progress(options.progress)
        self._companion = Companion(self.moment, folder, progress, options.system_every, self._record_now)
        self._is_over = False
        # A run whose end is never announced still has all that was reported.
        atexit.register(self._end_at_exit)

    def record(
        self, step: int, epoch: int | None, numbers: Mapping[str, Any], source: str | Callable[[], str] = "the run"
    ) -> float:
        """Have numbers written soon, and return the time that they have in the sinks. Never waits.

        :param numbers: must not change afterwards.
        :param source: who gave them; blamed for a name that no sink can hold.
        """
        now = time.time()
        named = self._names.named(numbers, source)
        for put in self._puts:
            put(step, epoch, named, now)
        return now

    def _record_now(self, numbers: Mapping[str, float]) -> None:
        self.record(self.moment.step, self.moment.epoch, numbers)

    @property
    def has_database(self) -> bool:
        """Whether the run's numbers go to `stats.sqlite`."""
        return any(worker.name == DATABASE for worker in self._workers)

    def flush_database(self) -> Callable[[], None]:
        """Have all that was recorded so far written now; returns what waits for that, on any thread."""
        flushes = [worker.flush() for worker in self._workers if worker.name == DATABASE]

        def wait() -> None:
            if not all(flush.wait(FLUSH_WAIT_SECONDS) for flush in flushes):
                logger.warning(
                    "a checkpoint is valid before %s has all numbers up to it: a kill before that leaves a gap",
                    DATABASE,
                )

        return wait

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
        if not any(worker.is_open for worker in self._workers):
            atexit.unregister(self._end_at_exit)
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
        deadline = time.monotonic() + EXIT_SECONDS
        for worker in self._workers:
            if worker.is_open:
                worker.join(deadline)
