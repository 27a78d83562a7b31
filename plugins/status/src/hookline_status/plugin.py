"""The plugin: which events write an entry to `status.json`, and what is in it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from hookline_hookspecs import TrainerState, hookimpl
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.schedules import Every, Schedule, as_schedule
from hookline_status.endpoint import Endpoint
from hookline_status.endpoint_hooks import EndpointHooks
from hookline_status.status_file import KEPT_ENTRIES, StatusEntry, StatusFile, as_kpi, as_time

__all__ = ["Options", "Status"]

RUNNING: Final = {"epoch": ("on_epoch_end", "on_epoch_end"), "step": ("post_training_step", "training_status")}
"""When there is a RUNNING entry, and what an endpoint knows it by: it gets reports as `post_training_step` already."""

RUNNING_SECONDS: Final = 5.0
"""Seconds between two RUNNING entries after the first hundred. A fast run has a hundred epochs in a second."""

AT_ONCE: Final = 30
"""The first entries of a fast run. Where the user has not chosen when there is one, the next ones take their time."""
PAUSE_SECONDS: Final = 0.5
"""Seconds between two of those."""


@dataclass(frozen=True)
class Options:
    """Options of the plugin."""

    component: str = "hookline"
    """The sender's name in every entry and message."""
    endpoint: str | None = None
    """The http or https URL that messages are sent to. None to write the file only."""
    every: int | None = None
    """Epochs between two RUNNING entries. None for about a hundred in a run, every epoch of up to 100, every second one
    of up to 200, and so on, and after the first 30 at most two in a second; or for no such entries where `every_steps`
    is given. After the first hundred, there is at most one in 5 seconds.
    """
    every_steps: int | None = None
    """Gradient steps between two RUNNING entries; None for none."""
    heartbeat_seconds: float = 30.0
    """Seconds between two heartbeats. They are sent until the run is over, even if the training thread is stuck."""
    allow_link_local: bool = False
    """Also send to link-local addresses and to cloud metadata services."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("every_steps", self.every_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.heartbeat_seconds <= 0:
            raise ValueError(f"heartbeat_seconds must be more than 0, got {self.heartbeat_seconds}")
        if self.endpoint is not None:
            Endpoint.of(self.endpoint, allow_link_local=self.allow_link_local)


class HundredInARun(Schedule):
    """Every epoch of a run of up to a hundred epochs, every second one of up to two hundred, and so on."""

    def __init__(self) -> None:
        self._every = Every(1)

    def set_length(self, epochs: int | None) -> None:
        self._every = Every(max(1, -(-(epochs or 0) // 100)))

    def next_after(self, tick: int) -> int | None:
        return self._every.next_after(tick)


class Status:
    """Writes `status.json` to the run's folder, and reports the run to an endpoint if there is one.

    The training thread neither writes nor sends anything.
    """

    after = ("evaluation",)  # so that an epoch's entry includes the scores of that epoch

    def __init__(self, options: Options) -> None:
        self.component = options.component
        self._file: StatusFile | None = None
        self._first_epoch = 0
        self._loop_began: float | None = None
        self._running_entries = 0
        self._latest_running = -math.inf
        self._endpoint_hooks: EndpointHooks | None = None
        self._by_default = HundredInARun()
        # Set on the instance, so that the plugin is called only for the events that its options ask for.
        if options.every is not None or options.every_steps is None:
            self.add_epoch = self._running_entry("epoch", options.every or self._by_default)
        if options.every_steps is not None:
            self.add_step = self._running_entry("step", options.every_steps)
        if options.endpoint is not None:
            endpoint = Endpoint.of(options.endpoint, allow_link_local=options.allow_link_local)
            self._endpoint_hooks = EndpointHooks(endpoint, options.component, options.heartbeat_seconds)
            for event, implementation in self._endpoint_hooks.implementations():
                setattr(self, f"report_{event}", implementation)

    @hookimpl(background=True, scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        self._running_entries = 0
        message = f"run {state.run_id} has started" if state.run_id else "the run has started"
        self._add(state, "on_new_training_run", "STARTED", message)

    @hookimpl(scope="driver")  # not in the background, since the time of an epoch is measured from here
    def pre_training(self, state: TrainerState) -> None:
        self._loop_began, self._first_epoch = time.monotonic(), state.epoch
        self._by_default.set_length(state.total_epochs)

    def _running_entry(self, unit: Literal["epoch", "step"], every: int | Schedule) -> Callable[..., None]:
        event, phase = RUNNING[unit]

        @hookimpl(specname=event, schedule=as_schedule(every), background=True, scope="driver")
        def add(state: TrainerState) -> None:
            now = time.monotonic()
            if now - self._latest_running >= self._pause(is_default=every is self._by_default):
                self._running_entries, self._latest_running = self._running_entries + 1, now
                self._add(state, phase, "RUNNING", f"{unit} {getattr(state, unit)} is complete")

        return add

    def _pause(self, *, is_default: bool) -> float:
        """The least seconds between the last RUNNING entry and the next."""
        if self._running_entries >= KEPT_ENTRIES:
            return RUNNING_SECONDS
        return PAUSE_SECONDS if is_default and self._running_entries >= AT_ONCE else 0.0

    @hookimpl(background=True, scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._add_last(state, "on_training_complete", "SUCCESS", "the run is complete")

    @hookimpl(background=True, scope="driver")
    def on_training_failed(self, state: TrainerState, error: BaseException) -> None:
        self._add_last(state, "on_training_failed", "FAILURE", describe_error(error))

    def _add_last(self, state: TrainerState, event: str, status: Literal["SUCCESS", "FAILURE"], message: str) -> None:
        try:
            self._add(state, event, status, message)
        finally:
            if self._endpoint_hooks is not None:
                self._endpoint_hooks.end()

    def _add(
        self,
        state: TrainerState,
        event: str,
        status: Literal["STARTED", "RUNNING", "SUCCESS", "FAILURE"],
        message: str,
    ) -> None:
        kpi = as_kpi(state.rollout_stats, state.loss_stats, state.eval_scores)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        entry = StatusEntry(date, status, message, self._data(state, event == "on_epoch_end"), kpi)
        if self._endpoint_hooks is not None:
            self._endpoint_hooks.send_entry(state, event, entry)
        if state.run_dir is None:
            return
        path = state.run_dir / "status.json"
        if self._file is None or self._file.path != path:
            self._file = StatusFile(path)
        self._file.add(entry)

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
        """The mean over the epochs of this process. A resumed run has not measured its earlier epochs."""
        complete = state.epoch - self._first_epoch + 1
        if self._loop_began is None or complete < 1:
            return None
        return (time.monotonic() - self._loop_began) / complete
