"""What the plugin does with an endpoint: which moments of a run are told, and which only count as progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from hookline_hookspecs import TrainerState, hookimpl
from hookline_status.entries import Entry
from hookline_status.messages import Kind
from hookline_status.pulse import Phase, Pulse
from hookline_status.reporter import Reporter

if TYPE_CHECKING:
    from hookline_status.endpoint import Endpoint

__all__ = ["Announcer"]

LEAST_SECONDS: Final = 0.4
"""What the last messages have in any case to get to disk."""

ONCE: Final[Mapping[str, Phase]] = {
    "pre_training": "training",
    "post_training": "training",
    "pre_validation": "validation",
    "post_validation": "validation",
}
"""Moments that are told, each under its own name."""

AGAIN_AND_AGAIN: Final[Mapping[str, Phase]] = {
    "pre_training_step": "training",
    "post_training_step": "training",
    "pre_validation_step": "validation",
    "post_validation_step": "validation",
}
"""Moments that are told now and then: every step has them."""

PROGRESS: Final = (
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
"""Moments that show that a run goes on."""


class Announcer:
    """Tells an endpoint of the run that is under way. Its implementations become the plugin's own."""

    def __init__(self, endpoint: Endpoint, component: str, heartbeat_seconds: float) -> None:
        self._endpoint = endpoint
        self._component = component
        self._heartbeat_seconds = heartbeat_seconds
        self._pulse = self._new_pulse()
        self._reporter: Reporter | None = None
        self._ended_at = 0.0

    def implementations(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """What is to be called at each event, on the training thread of rank 0."""
        yield "on_new_training_run", self.begin
        yield "log_metrics", self.tell_metrics
        yield "collect_metrics", self.own_metrics
        yield "on_training_complete", self.see_completion
        yield "on_training_failed", self.see_failure
        yield "on_evaluation_start", self.begin_evaluation
        yield "on_evaluation_end", self.end_evaluation
        for event, phase in ONCE.items():
            yield event, self._moment(event, phase, lambda reporter: reporter.event)
        for event, phase in AGAIN_AND_AGAIN.items():
            yield event, self._moment(event, phase, lambda reporter: reporter.recurring_event)
        for event in PROGRESS:
            yield event, self._progress(event)

    @hookimpl(specname="on_new_training_run", scope="driver", tryfirst=True)
    def begin(self, state: TrainerState) -> None:
        self._open(state)
        self._pulse.move("training")

    @hookimpl(specname="log_metrics", scope="driver")
    def tell_metrics(self, report_data: dict[str, Any], step: int) -> None:
        # Taken once, here and below: at the end of a run the background takes it away.
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

    @hookimpl(specname="on_training_complete", scope="driver", tryfirst=True)
    def see_completion(self) -> None:
        self._ended_at = time.monotonic()

    @hookimpl(specname="on_training_failed", scope="driver", tryfirst=True)
    def see_failure(self) -> None:
        self._ended_at = time.monotonic()

    @hookimpl(specname="on_evaluation_start", scope="driver")
    def begin_evaluation(self) -> None:
        self._pulse.move("validation")
        reporter = self._reporter
        if reporter is not None:
            reporter.event("on_evaluation_start", {})

    @hookimpl(specname="on_evaluation_end", scope="driver")
    def end_evaluation(self, scores: Mapping[str, float]) -> None:
        self._pulse.move("validation")
        reporter = self._reporter
        if reporter is not None:
            reporter.event("on_evaluation_end", scores)

    def _moment(
        self, event: str, phase: Phase, way: Callable[[Reporter], Callable[[str, Mapping[str, Any]], None]]
    ) -> Callable[..., Any]:
        @hookimpl(specname=event, scope="driver")
        def tell(report_data: dict[str, Any]) -> None:
            self._pulse.move(phase, report_data)
            reporter = self._reporter
            if reporter is not None:
                way(reporter)(event, report_data)

        return tell

    def _progress(self, event: str) -> Callable[..., Any]:
        @hookimpl(specname=event, scope="driver")
        def count() -> None:
            self._pulse.move("training")

        return count

    # -- from the plugin's background thread ----------------------------------------------------------------------

    def tell_entry(self, state: TrainerState, event: str, entry: Entry) -> None:
        """An entry of `status.json`. The last of a run is never dropped."""
        kind = Kind.TERMINAL if entry.status in ("SUCCESS", "FAILURE") else Kind.EVENT
        self._open(state).event(event, entry.as_dict(), kind)

    def end(self) -> None:
        """Deliver what is left within 5 s of the run's end. What comes later opens a new delivery."""
        from hookline_status.delivery import FLUSH_SECONDS

        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            # The time runs from the event, and not from when the background comes to it.
            passed = time.monotonic() - self._ended_at
            reporter.delivery.close(max(LEAST_SECONDS, FLUSH_SECONDS - passed))

    def _open(self, state: TrainerState) -> Reporter:
        reporter = self._reporter
        if reporter is None:
            # Not at the module's head: listing plugins needs no database and no threads.
            from hookline_status.delivery import Delivery

            self._pulse = self._new_pulse()
            delivery = Delivery(self._endpoint, getattr(state, "run_dir", None))
            delivery.watch(self._pulse)
            reporter = self._reporter = Reporter(delivery, self._component)
        return reporter

    def _new_pulse(self) -> Pulse:
        return Pulse(self._component, self._heartbeat_seconds)
