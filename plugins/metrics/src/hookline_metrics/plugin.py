"""The plugin: which numbers are recorded, and when."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hookline_hookspecs import Emit, Every, TrainerState, hookimpl
from hookline_metrics.database import Row, StatsDatabase
from hookline_metrics.scalars import Merger, as_scalar

__all__ = ["Metrics"]

logger = logging.getLogger("hookline.metrics")

EVERY_EPOCH = Every(1, start=-1)  # epoch 0 too


class Report(NamedTuple):
    """Numbers of one moment, before they are looked at."""

    step: int
    epoch: int | None
    numbers: Mapping[str, Any]
    time: float


class Metrics:
    """Writes every number of the run to `stats.sqlite`, and touches `heartbeat` as the run gets on.

    The training thread gathers, since plugins answer `collect_metrics` there; the background thread writes.
    """

    after = ("evaluation",)  # an epoch's report has the scores of that epoch

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._merger = Merger()
        # Of the training thread.
        self._gathered_at: tuple[Path | None, int, int] | None = None
        self._has_new_scores = False
        self._recorded_scores: dict[str, float] = {}
        # From the training thread to the background thread.
        self._gathered: deque[Report] = deque()
        # Of the background thread.
        self._database: StatsDatabase | None = None
        self._epoch: int | None = None
        self._is_over = False
        self._mentioned: set[str] = set()

    # -- on the training thread -----------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_evaluation_end(self) -> None:
        self._has_new_scores = True

    @hookimpl(schedule=EVERY_EPOCH, scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self._gather(state)

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._gather(state)

    def _gather(self, state: TrainerState) -> None:
        numbers = self._merger.merge(self._sources(state))
        if numbers:
            self._gathered.append(Report(state.step, state.epoch, numbers, time.time()))

    def _sources(self, state: TrainerState) -> Iterator[tuple[str, Any]]:
        # Scores stay in the state until the next evaluation; each is recorded once, at the step it belongs to.
        if self._has_new_scores or state.eval_scores != self._recorded_scores:
            self._has_new_scores, self._recorded_scores = False, dict(state.eval_scores)
            yield "state.eval_scores", state.eval_scores
        # The end of a run most often is the end of an epoch, which has just been reported.
        moment = state.run_dir, state.epoch, state.step
        if moment != self._gathered_at:
            self._gathered_at = moment
            yield "state.loss_stats", state.loss_stats
            yield "state.rollout_stats", state.rollout_stats
            for plugin, numbers in self._emit.collect_metrics(state=state).items():
                yield f"plugin {plugin!r}", numbers

    # -- in the background ----------------------------------------------------------------------------------------

    @hookimpl(background=True, scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        self._is_over = False
        self._epoch = None
        self._attend_to(state)

    @hookimpl(background=True, scope="driver")
    def on_epoch_start(self, state: TrainerState) -> None:
        self._epoch = state.epoch
        self._attend_to(state)

    @hookimpl(background=True)
    def log_metrics(self, report_data: dict[str, Any], step: int) -> None:
        if self._database is None:
            self._mention("numbers are reported before the run's folder is known, or it has none: they are not kept")
            return
        self._write([Report(step, report_data.get("current_epoch", self._epoch), report_data, time.time())])

    # Last, so that what the training thread gathers in the same event is there to be written.
    @hookimpl(specname="on_epoch_end", schedule=EVERY_EPOCH, background=True, scope="driver", trylast=True)
    def write_epoch(self, state: TrainerState) -> None:
        self._attend_to(state)
        self._write_gathered()

    @hookimpl(specname="on_training_complete", background=True, scope="driver", trylast=True)
    def write_last_and_close(self, state: TrainerState) -> None:
        self._attend_to(state)
        self._write_gathered()
        self._end()

    @hookimpl(background=True, scope="driver")
    def on_training_failed(self, state: TrainerState) -> None:
        self._attend_to(state)
        self._write_gathered()
        self._end()

    def _attend_to(self, state: TrainerState) -> None:
        """Write to the folder of this run from now on, and show that it is alive."""
        path = None if state.run_dir is None else state.run_dir / "stats.sqlite"
        if path != (self._database and self._database.path):
            self._close()
            self._database = None if path is None else StatsDatabase(path)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        self._beat()

    def _write_gathered(self) -> None:
        reports = []
        while self._gathered:
            reports.append(self._gathered.popleft())
        self._write(reports)

    def _write(self, reports: list[Report]) -> None:
        if self._database is None:
            return
        rows = [row for report in reports for row in self._rows(report)]
        if rows:
            self._database.write(rows)
        self._beat()
        if self._is_over:
            self._close()  # a report that came after the end: nobody else will

    def _rows(self, report: Report) -> Iterator[Row]:
        for name, value in report.numbers.items():
            number = as_scalar(value)
            if number is not None:
                yield Row(int(report.step), report.epoch, name, number, report.time)
            elif value is not None:
                self._mention(f"metric {name!r} is a {type(value).__name__} and no number: it is left out")

    def _mention(self, message: str) -> None:
        if message not in self._mentioned:
            self._mentioned.add(message)
            logger.info(message)

    def _beat(self) -> None:
        if self._database is not None:
            (self._database.path.parent / "heartbeat").touch()

    def _end(self) -> None:
        self._is_over = True
        self._close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
