"""The hooks of a plugin with an endpoint: which events are sent, and which only count as progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from hookline_hookspecs import TrainerState, hookimpl
from hookline_status.heartbeat import Heartbeat, Phase
from hookline_status.messages import Kind, Reporter
from hookline_status.status_file import StatusEntry

if TYPE_CHECKING:
    from hookline_status.endpoint import Endpoint

__all__ = ["EndpointHooks"]

MIN_FLUSH_SECONDS: Final = 0.4
"""The least time that the last messages get to be written to disk."""

PHASE_EVENTS: Final[Mapping[str, Phase]] = {
    "pre_training": "training",
    "post_training": "training",
    "pre_validation": "validation",
    "post_validation": "validation",
    "on_evaluation_start": "validation",
    "on_evaluation_end": "validation",
}
"""Events that are always sent, each under its own name, with their report or scores."""

STEP_EVENTS: Final[Mapping[str, Phase]] = {
    "pre_training_step": "training",
    "post_training_step": "training",
    "pre_validation_step": "validation",
    "post_validation_step": "validation",
}
"""Events of every step, which are sent at most once a second each."""

PROGRESS_EVENTS: Final = (
    "on_epoch_start",
    "on_train_phase_start",
    "on_mb_end",
    "on_train_phase_end",
    "on_epoch_end",
    "on_rollout_start",
    "on_rollout_end",
    "on_weights_updated",
    "pre_rewards",
    "post_rewards",
    "on_checkpoint_saved",
    "on_checkpoint_restored",
    "on_replay_saved",
)
"""Events that are not sent, but show that the run makes progress."""


class EndpointHooks:
    """Reports the current run to an endpoint. `Status` adds these hook implementations to its own."""

    def __init__(self, endpoint: Endpoint, component: str, heartbeat_seconds: float) -> None:
        self._endpoint = endpoint
        self._component = component
        self._heartbeat_seconds = heartbeat_seconds
        self._heartbeat = self._new_heartbeat()
        self._reporter: Reporter | None = None
        self._ended_at = 0.0

    def implementations(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Events and their implementations, which run on the training thread of rank 0."""
        yield "on_new_training_run", self.begin
        yield "log_metrics", self.send_metrics
        yield "collect_metrics", self.own_metrics
        for event in ("on_training_complete", "on_training_failed"):
            yield event, self._end_of_run(event)
        for event, phase in PHASE_EVENTS.items():
            yield event, self._reporting(event, phase, lambda reporter: reporter.event)
        for event, phase in STEP_EVENTS.items():
            yield event, self._reporting(event, phase, lambda reporter: reporter.recurring_event)
        for event in PROGRESS_EVENTS:
            yield event, self._progress(event)

    @hookimpl(specname="on_new_training_run", scope="driver", tryfirst=True)
    def begin(self, state: TrainerState) -> None:
        self._open(state)
        self._heartbeat.mark_progress("training")

    @hookimpl(specname="log_metrics", scope="driver")
    def send_metrics(self, report_data: dict[str, Any], step: int) -> None:
        # Read once, here and below, since the background thread sets it to None at the end of a run.
        reporter = self._reporter
        if reporter is not None:
            reporter.status(report_data, step)

    @hookimpl(specname="collect_metrics", scope="driver")
    def own_metrics(self) -> dict[str, float] | None:
        reporter = self._reporter
        if reporter is None:
            return None
        delivery = reporter.delivery
        return {"status/dropped": delivery.dropped, "status/waiting": delivery.waiting}

    def _end_of_run(self, event: str) -> Callable[..., Any]:
        @hookimpl(specname=event, scope="driver", tryfirst=True)
        def note_time() -> None:
            self._ended_at = time.monotonic()

        return note_time

    def _reporting(
        self, event: str, phase: Phase, method: Callable[[Reporter], Callable[[str, Mapping[str, Any]], None]]
    ) -> Callable[..., Any]:
        @hookimpl(specname=event, scope="driver")
        def report(report_data: dict[str, Any] | None = None, scores: Mapping[str, float] | None = None) -> None:
            self._heartbeat.mark_progress(phase, report_data)
            reporter = self._reporter
            if reporter is not None:
                method(reporter)(event, report_data or scores or {})

        return report

    def _progress(self, event: str) -> Callable[..., Any]:
        @hookimpl(specname=event, scope="driver")
        def count() -> None:
            self._heartbeat.mark_progress("training")

        return count

    # -- from the plugin's background thread ----------------------------------------------------------------------

    def send_entry(self, state: TrainerState, event: str, entry: StatusEntry) -> None:
        """Send an entry of `status.json`. The last entry of a run is never dropped."""
        kind = Kind.TERMINAL if entry.status in ("SUCCESS", "FAILURE") else Kind.EVENT
        self._open(state).event(event, entry.as_dict(), kind)

    def end(self) -> None:
        """Deliver what is left within 5 s of the run's end. Later messages open a new delivery."""
        from hookline_status.delivery import FLUSH_SECONDS

        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            # The 5 s count from the event, not from when the background thread gets to it.
            passed = time.monotonic() - self._ended_at
            reporter.delivery.close(max(MIN_FLUSH_SECONDS, FLUSH_SECONDS - passed))

    def _open(self, state: TrainerState) -> Reporter:
        reporter = self._reporter
        if reporter is None:
            # Imported here so that listing plugins does not import SQLite and HTTP.
            from hookline_status.delivery import Delivery

            self._heartbeat = self._new_heartbeat()
            delivery = Delivery(self._endpoint, getattr(state, "run_dir", None))
            delivery.add_heartbeat(self._heartbeat)
            reporter = self._reporter = Reporter(delivery, self._component)
        return reporter

    def _new_heartbeat(self) -> Heartbeat:
        return Heartbeat(self._component, self._heartbeat_seconds)
