"""A thread that runs beside training. It touches the heartbeat, shows progress, measures the machine, writes files."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs.errors import describe_error
from hookline_metrics.measurements import SystemMonitor
from hookline_metrics.progress import LiveState, Progress

__all__ = ["MonitorThread"]

logger = logging.getLogger("hookline.metrics")

LOOK_SECONDS: Final = 1.0


class MonitorThread:
    """Reads the live state once a second.

    The heartbeat file is touched each time, even while the training thread is busy or stuck. So an old heartbeat means
    that the process was killed or that its training thread has ended.

    :param folder: the run's folder, None for a run that writes no files.
    :param system_every: seconds between two measurements of the machine; 0 for none.
    :param record: called with the metrics of the machine.
    :param files: functions that write a file to the run's folder if it has changed, by what to call them in a warning.
    :param catch_up: brings the live state up to date.
    """

    def __init__(
        self,
        live: LiveState,
        folder: Path | None,
        progress: Progress | None,
        system_every: float,
        record: Callable[[Mapping[str, float]], None],
        files: Mapping[str, Callable[[Path], None]],
        catch_up: Callable[[], None],
    ) -> None:
        self._moment = live
        self._folder = folder
        self._progress = progress
        self._system_every = system_every
        self._record = record
        self._files = files
        self._catch_up = catch_up
        self._monitor: SystemMonitor | None = None
        self._system_due = time.monotonic()
        self._has_touched = False
        self._failed: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hookline-metrics-monitor", daemon=True)
        self._thread.start()

    def end(self, deadline: float) -> None:
        """Update a last time and stop. Waits until `time.monotonic()` reaches `deadline` at most."""
        self._ending.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            self._look()
        self._look()
        if self._progress is not None:
            self._attempt("show its progress", lambda progress: progress.end(self._moment), self._progress)

    def _look(self) -> None:
        if self._folder is not None and self._moment.thread.is_alive():
            self._attempt("touch its heartbeat", self._touch, self._folder / "heartbeat")
        self._catch_up()
        if self._folder is not None and self._has_touched:
            for what, write in self._files.items():
                self._attempt(f"write {what}", write, self._folder)
        if self._progress is not None and not self._ending.is_set():
            self._attempt("show its progress", lambda progress: progress.show(self._moment), self._progress)
        if self._folder is not None and self._system_every and time.monotonic() >= self._system_due:
            self._system_due = time.monotonic() + self._system_every
            self._attempt("measure the machine", self._measure_machine, self._folder)

    def _touch(self, path: Path) -> None:
        if not self._has_touched:  # a folder that the user removes during the run is not created again
            path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._has_touched = True

    def _measure_machine(self, folder: Path) -> None:
        if self._monitor is None:
            self._monitor = SystemMonitor(folder)  # CPU use needs a second measurement, taken soon after
            self._system_due = time.monotonic() + min(1.0, self._system_every)
        else:
            self._record(self._monitor.numbers())

    def _attempt(self, what: str, act: Callable[[Any], None], target: Any) -> None:
        """Call `act`, and log its first failure. A failure does not stop the other work of this thread."""
        try:
            act(target)
        except Exception as error:
            if what not in self._failed:
                self._failed.add(what)
                logger.warning("the metrics plugin cannot %s: %s", what, describe_error(error))
