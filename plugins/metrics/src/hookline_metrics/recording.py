"""`Recording`: the sinks and threads that are open during one run. `all_sinks` says which sinks it has."""

from __future__ import annotations

import atexit
import logging
import pkgutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs import Emit
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.sinks import Report, Run, Sink
from hookline_metrics.collecting import NameCheck
from hookline_metrics.digest import Digest
from hookline_metrics.episodes import EpisodeLog
from hookline_metrics.failures import FailureLog
from hookline_metrics.monitor_thread import MonitorThread
from hookline_metrics.options import Options
from hookline_metrics.progress import LiveState, open_progress
from hookline_metrics.sinks import DATABASE
from hookline_metrics.sinks.sink_worker import Item, SinkWorker

__all__ = ["LostReportsError", "Recording", "all_sinks"]

logger = logging.getLogger("hookline.metrics")

END_SECONDS: Final = 4.0
"""How long the end of a run waits for sinks to write the rest. Less than the deadline that all plugins share."""

FLUSH_WAIT_SECONDS: Final = 10.0
"""How long a checkpoint waits for the database. Longer than SQLite waits for another program's lock."""

EXIT_SECONDS: Final = 20.0
"""How long the process waits at exit for a sink that is still busy, for example with an upload."""


MAX_NOTED: Final = 10_000
"""Notes that wait for another thread. Where none takes them, the training thread digests so many itself."""


class LostReportsError(RuntimeError):
    """Reports did not reach a sink."""


class Recording:
    """The sinks of one run, each with its own thread, and the monitor thread.

    What happens in the run is noted by `later`, and digested by these threads.

    :param folder: the run's folder, None for a run that writes no files.
    :param sinks: functions that open a sink, by its name for messages.
    """

    def __init__(self, folder: Path | None, sinks: Mapping[str, Callable[[], Sink]], options: Options) -> None:
        self.folder = folder
        self.live = LiveState()
        self.failures = FailureLog()
        self._noted: deque[tuple[Any, ...]] = deque()
        self._digesting = threading.Lock()
        self._failed_notes = 0
        self._first_error = ""
        episodes = EpisodeLog(options.episodes, options.samples, self.pass_on)
        self.digest = Digest(time.perf_counter(), self.live, episodes, self._put)
        self.names = NameCheck()
        every_report = options.steps == "all"
        self._workers = [
            SinkWorker(name, own, every_report=every_report, before_taking=self.catch_up) for name, own in sinks.items()
        ]
        progress = open_progress(options.progress)
        # What has a database has the run's other files too. `MetricsHook`, beside the plugin, leaves them to it.
        files = {"episodes": episodes.write, "failures of plugins": self.failures.write}
        self._monitor_thread = MonitorThread(
            self.live,
            folder,
            progress,
            options.system_every,
            self._record_now,
            files if self.has_database else {},
            self.catch_up,
        )
        self._is_over = False
        self._late: list[SinkWorker] = []
        """Those that were still busy when the run had waited for them; they are waited for again at exit."""
        # So that everything is written even if no event ends the run.
        atexit.register(self._end_at_exit)

    def later(self, *note: Any) -> None:
        """Note a call, a function and its arguments, which another thread makes. Does not wait for that thread.

        If all threads hang, as with a disk that does not answer, the notes become reports in the bounded queues.
        """
        self._noted.append(note)
        if len(self._noted) > MAX_NOTED:
            self.catch_up(timeout=0.0)

    def catch_up(self, timeout: float = -1.0) -> None:
        """Make all calls that were noted, in their order.

        :param timeout: how long to wait for another thread that does the same; -1 for as long as it takes.
        """
        if not self._digesting.acquire(timeout=timeout):
            return
        try:
            while self._noted:
                call, *arguments = self._noted.popleft()
                try:
                    call(*arguments)
                except Exception as error:
                    self._failed_notes += 1
                    self._first_error = self._first_error or f"{call.__name__}: {describe_error(error)}"
        finally:
            self._digesting.release()

    def record(self, step: int, epoch: int | None, numbers: Mapping[str, Any], source: str = "the run") -> float:
        """Queue metrics for all sinks, and return the timestamp that they get. Never blocks.

        :param numbers: must not be changed afterwards.
        :param source: where they come from, for the warning about an invalid name.
        """
        now = time.time()
        self.later(self._put, step, epoch, numbers, now, source)
        return now

    def _put(
        self, step: int, epoch: int | None, numbers: Mapping[str, Any], time: float, source: str = "the run"
    ) -> None:
        if not self.names.known.issuperset(numbers):
            numbers = self.names.valid(numbers, source)
        report = Report(step, epoch, numbers, time)
        for worker in self._workers:
            worker.put(report)

    def pass_on(self, item: Item) -> None:
        """Queue samples, a replay or a checkpoint for all sinks. Never blocks."""
        for worker in self._workers:
            worker.put_item(item)

    def _record_now(self, numbers: Mapping[str, float]) -> None:
        self.record(self.live.step, self.live.epoch, numbers)

    @property
    def has_database(self) -> bool:
        """Whether the run's metrics go to `stats.sqlite`."""
        return any(worker.name == DATABASE for worker in self._workers)

    def flush_database(self) -> Callable[[], None]:
        """Start to write all queued metrics to the database. Returns a function that waits until that is done."""
        flushes = [worker.flush() for worker in self._workers if worker.name == DATABASE]

        def wait() -> None:
            if not all(flush.wait(FLUSH_WAIT_SECONDS) for flush in flushes):
                logger.warning(
                    "%s was not written in time for a checkpoint. If the run is killed now and resumed from that "
                    "checkpoint, metrics before it are missing",
                    DATABASE,
                )

        return wait

    def end(self) -> Iterator[str]:
        """Close all sinks and threads. Yields the name of each sink that is closed; raises if reports were lost."""
        if self._is_over:
            return
        self._is_over = True
        deadline = time.monotonic() + END_SECONDS
        self._monitor_thread.end(deadline)
        self.catch_up(timeout=max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            if worker.join(deadline):
                yield worker.name
        self._late = busy = [worker for worker in self._workers if worker.is_busy]
        if not busy:
            atexit.unregister(self._end_at_exit)
        for worker in busy:
            logger.warning("%s is still being written to. The process waits for it at exit", worker.name)
        lost = [_lost_reports(worker for worker in self._workers if worker not in busy)]
        if self._failed_notes:
            lost.append(f"events whose metrics are left out: {self._failed_notes}, the first at {self._first_error}")
        if any(lost):
            raise LostReportsError("; ".join(filter(None, lost)))

    def _end_at_exit(self) -> None:
        try:
            list(self.end())
        except LostReportsError as error:
            logger.warning("%s", error)
        deadline = time.monotonic() + EXIT_SECONDS
        for worker in self._late:
            worker.join(deadline)
        lost = _lost_reports(self._late)
        if lost:
            logger.warning("%s", lost)


def _lost_reports(workers: Iterable[SinkWorker]) -> str:
    return "; ".join(
        f"reports not written to {worker.name}: {worker.unwritten} "
        f"({'it is still busy' if worker.error is None else describe_error(worker.error)})"
        for worker in workers
        if worker.unwritten
    )


def all_sinks(options: Options, run: Run, emit: Emit | None) -> dict[str, Callable[[], Sink]]:
    """Functions that open a sink, by the sink's name for messages."""
    built_in = {
        DATABASE: (True, "sqlite:SQLiteSink"),
        "metrics.csv": (options.csv, "text_files:CSVSink"),
        "metrics.jsonl": (options.jsonl, "text_files:JSONLinesSink"),
    }
    sinks: dict[str, Callable[[], Sink]] = {
        name: partial(_open_own, path, run) for name, (is_enabled, path) in built_in.items() if is_enabled
    }
    if emit is not None:
        for plugin, registered in emit.register_sinks(run=run).items():
            _add_registered(sinks, plugin, registered)
    return sinks


def _open_own(path: str, run: Run) -> Sink:
    sink: Sink = pkgutil.resolve_name(f"hookline_metrics.sinks.{path}")(run)
    return sink


def _add_registered(sinks: dict[str, Callable[[], Sink]], plugin: str, registered: Any) -> None:
    wrong = f"a {type(registered).__name__}"
    if isinstance(registered, Mapping):
        entries = ((name, own) for name, own in registered.items() if not (isinstance(name, str) and callable(own)))
        wrong = next((f"{name!r}: a {type(own).__name__}" for name, own in entries), "")
    if wrong:
        logger.warning(
            "the sinks of plugin %r are not used: register_sinks must return a dictionary with a function that opens "
            "a sink for each name, not %s",
            plugin,
            wrong,
        )
        return
    for name, open_sink in registered.items():
        if name in sinks:
            logger.warning("sink %r of plugin %r is not used: there is another one of that name", name, plugin)
        else:
            sinks[name] = open_sink
