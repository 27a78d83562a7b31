"""The thread that goes along with a run: it touches the heartbeat, shows the progress and looks at the machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs.errors import describe_error
from hookline_metrics.moment import Moment
from hookline_metrics.progress import Progress
from hookline_metrics.system import SystemMonitor

__all__ = ["Companion"]

logger = logging.getLogger("hookline.metrics")

LOOK_SECONDS: Final = 0.5


class Companion:
    """Looks at the moment twice a second.

    The heartbeat is touched at every look, whatever the training thread does. It says that the process lives and that
    the run is not over; it grows old when the process was killed, or when its training thread has ended.

    :param folder: the run's folder, None for a run that leaves no files.
    :param system_every: seconds between two looks at the machine; 0 for none.
    :param record: takes the numbers of the machine.
    """

    def __init__(
        self,
        moment: Moment,
        folder: Path | None,
        progress: Progress | None,
        system_every: float,
        record: Callable[[Mapping[str, float]], None],
    ) -> None:
        self._moment = moment
        self._folder = folder
        self._progress = progress
        self._system_every = system_every
        self._record = record
        self._monitor: SystemMonitor | None = None
        self._system_due = time.monotonic()
        self._has_touched = False
        self._failed: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hookline-metrics-companion", daemon=True)
        self._thread.start()

    def end(self, deadline: float) -> None:
        """Look once more, and end; wait for that until `time.monotonic()` reaches `deadline`."""
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
        if self._progress is not None and not self._ending.is_set():
            self._attempt("show its progress", lambda progress: progress.show(self._moment), self._progress)
        if self._folder is not None and self._system_every and time.monotonic() >= self._system_due:
            self._system_due = time.monotonic() + self._system_every
            self._attempt("look at the machine", self._look_at_machine, self._folder)

    def _touch(self, path: Path) -> None:
        if not self._has_touched:  # a folder that is removed later is not made again
            path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._has_touched = True

    def _look_at_machine(self, folder: Path) -> None:
        if self._monitor is None:
            self._monitor = SystemMonitor(folder)  # which has nothing to say before the next look
            self._system_due = time.monotonic() + min(1.0, self._system_every)
        else:
            self._record(self._monitor.numbers())

    def _attempt(self, what: str, act: Callable[[Any], None], target: Any) -> None:
        """One thing that fails does not keep the others from being done; it is said once."""
        try:
            act(target)
        except Exception as error:
            if what not in self._failed:
                self._failed.add(what)
                logger.warning("the metrics plugin cannot %s: %s", what, describe_error(error))
