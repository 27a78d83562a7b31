"""The plugin: which moments of a run make an entry, and what is known then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from hookline_hookspecs import Every, TrainerState, hookimpl
from hookline_status.entries import Entry, StatusFile, as_kpi, as_time

__all__ = ["Options", "Status"]


@dataclass(frozen=True)
class Options:
    """What the user can say of the status."""

    component: str = "hookline"
    """Names the run to whoever watches the file, in every entry."""


class Status:
    """Keeps `status.json` in the run's folder, off the training thread."""

    after = ("evaluation",)  # an epoch's entry has the scores of that epoch

    def __init__(self, options: Options) -> None:
        self.component = options.component
        self._file: StatusFile | None = None
        self._first_epoch = 0
        self._loop_began: float | None = None

    @hookimpl(background=True, scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        self._loop_began = None
        self._add(state, "STARTED", f"run {state.run_id} has started" if state.run_id else "the run has started")

    @hookimpl(background=True, scope="driver")
    def pre_training(self, state: TrainerState) -> None:
        self._loop_began, self._first_epoch = time.monotonic(), state.epoch

    @hookimpl(schedule=Every(1, start=-1), background=True, scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self._add(state, "RUNNING", f"epoch {state.epoch} is complete")

    @hookimpl(background=True, scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._add(state, "SUCCESS", "the run is complete")

    @hookimpl(background=True, scope="driver")
    def on_training_failed(self, state: TrainerState, error: BaseException) -> None:
        self._add(state, "FAILURE", f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    def _add(
        self, state: TrainerState, status: Literal["STARTED", "RUNNING", "SUCCESS", "FAILURE"], message: str
    ) -> None:
        if state.run_dir is None:
            return
        path = state.run_dir / "status.json"
        if self._file is None or self._file.path != path:
            self._file = StatusFile(path)
        kpi = as_kpi(state.rollout_stats, state.loss_stats, state.eval_scores)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        self._file.add(Entry(date, status, message, self._data(state, status == "RUNNING"), kpi))

    def _data(self, state: TrainerState, at_epoch_end: bool) -> dict[str, Any]:
        per_epoch = self._seconds_per_epoch(state) if at_epoch_end else None
        left = None
        if per_epoch is not None and state.total_epochs is not None:
            left = round(per_epoch * max(0, state.total_epochs - state.epoch - 1))
        return {
            "component": self.component,
            "epoch": state.epoch,
            "max_epoch": state.total_epochs,
            "step": state.step,
            "max_step": state.total_steps,
            "time_per_epoch": as_time(per_epoch),
            "eta": as_time(left),
        }

    def _seconds_per_epoch(self, state: TrainerState) -> float | None:
        """The mean since this process began to train: a resumed run has not spent time on its earlier epochs."""
        complete = state.epoch - self._first_epoch + 1
        if self._loop_began is None or complete < 1:
            return None
        return (time.monotonic() - self._loop_began) / complete
