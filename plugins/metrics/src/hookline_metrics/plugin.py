"""The plugin: which numbers are recorded, and when."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs import Emit, Every, HookContext, Rollout, TrainerState, hookimpl
from hookline_hookspecs.redaction import redact
from hookline_metrics.gathering import Gatherer
from hookline_metrics.gradients import gradient_statistics
from hookline_metrics.lessons import LessonRecord
from hookline_metrics.names import calling_code
from hookline_metrics.options import Options
from hookline_metrics.phases import Phase, PhaseClock
from hookline_metrics.recording import Recording
from hookline_metrics.sinks.sink import DATABASE, SAVED, Run, Sink
from hookline_metrics.sinks.wanted import wanted_sinks

__all__ = ["Metrics"]

logger = logging.getLogger("hookline.metrics")

COUNTERS: Final = ("current_epoch", "current_step", "total_steps")
"""In the reports of steps, and in every row anyway."""


class Metrics:
    """Records every number of the run, shows how it gets on, and touches `heartbeat` until it is over.

    The training thread gathers, since plugins answer `collect_metrics` there, and appends to queues. All else is done
    by threads that the recording keeps.
    """

    # The last report has the scores of the last checkpoint's evaluation.
    after: tuple[str, ...] = ("evaluation", "checkpoint")

    def __init__(self, options: Options, emit: Emit | None = None) -> None:
        self._options = options
        self._gatherer = Gatherer(emit)
        self._phases = PhaseClock()
        self._lessons = LessonRecord()
        self._recording: Recording | None = None
        self._has_started = False
        self._is_restored = False
        self._gradients_due = 0
        self._latest_report: tuple[int, Mapping[str, Any]] = (-1, {})
        self._mentioned = False

    # -- the run --------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        self._open(state)

    @hookimpl(scope="driver")
    def pre_training(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        recording = self._open(state)
        if state.resume and not self._is_restored and recording.has_database:
            # Nothing was there to go on from: what an earlier start recorded is recorded again.
            _rewind(recording, None)
        recording.moment.start_step = state.step
        recording.moment.start_epoch = report_data.get("start_epoch", state.epoch)
        self._phases.restart(state.step, state.agent_step)
        self._gradients_due = _next_multiple(state.step, self._options.gradients_every)
        recording.record(state.step, None, {"run/started": 1.0})
        self._has_started = True

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._phases.leave_all()
        self._gather(state)
        self._open(state).record(state.step, state.epoch, {"run/completed": 1.0})

    @hookimpl(scope="driver")
    def on_training_failed(self, state: TrainerState) -> None:
        # A run that could not even start says nothing of the one that its folder is from.
        if self._recording is not None and self._has_started:
            self._gather(state)
            self._recording.record(state.step, state.epoch, {"run/failed": 1.0})

    # Last, so that what the training thread gathers in the same event is there to be written.
    @hookimpl(specname="on_training_complete", background=True, scope="driver", trylast=True)
    def end_complete_run(self) -> None:
        self._end()

    @hookimpl(specname="on_training_failed", background=True, scope="driver", trylast=True)
    def end_failed_run(self) -> None:
        self._end()

    def _open(self, state: TrainerState) -> Recording:
        """The recording of this run, with what it needs to know of the state."""
        recording = self._recording
        if recording is None or recording.folder != state.run_dir:
            self._end()
            self._recording = recording = Recording(state.run_dir, self._sinks(state), self._options)
            self._phases, self._lessons = PhaseClock(), LessonRecord()
            self._has_started = self._is_restored = False
        moment = recording.moment
        moment.total_epochs, moment.total_steps = state.total_epochs, state.total_steps
        moment.step, moment.phase, moment.thread = state.step, self._phases.current, threading.current_thread()
        return recording

    def _sinks(self, state: TrainerState) -> list[tuple[str, Callable[[], Sink]]]:
        if state.run_dir is None:
            return []
        config = redact(json.loads(json.dumps(redact(getattr(state, "config", {})), default=str)))
        return wanted_sinks(self._options, Run(state.run_dir, state.run_id, config, state.shared["metrics"]))

    def _end(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            for sink in recording.end():
                if sink == DATABASE and self._options.report and recording.folder is not None:
                    _write_report(recording.folder)

    # -- numbers --------------------------------------------------------------------------------------------------

    @hookimpl
    def log_metrics(self, report_data: dict[str, Any], step: int) -> None:
        recording = self._recording
        if recording is None:
            self._mention_lost_report()
            return
        numbers = report_data.copy()
        for counter in COUNTERS:
            numbers.pop(counter, None)
        moment = recording.moment
        moment.step = step
        moment.numbers = numbers
        epoch = report_data.get("current_epoch")
        recording.record(step, epoch if type(epoch) is int else moment.epoch, numbers, calling_code)
        latest_step, latest = self._latest_report
        self._latest_report = step, {**latest, **numbers} if step == latest_step else numbers

    @hookimpl(scope="driver")
    def on_mb_end(self, state: TrainerState) -> None:
        if state.step >= self._gradients_due and self._options.gradients_every and self._recording is not None:
            self._gradients_due = _next_multiple(state.step, self._options.gradients_every)
            self._recording.record(state.step, state.epoch, gradient_statistics(state.policy), "the policy's modules")

    @hookimpl(schedule=Every(1, start=-1), scope="driver")  # epoch 0 too
    def on_epoch_end(self, state: TrainerState) -> None:
        self._phases.leave_all()
        self._gather(state)
        self._open(state).moment.end_epoch(state.epoch, time.monotonic())

    def _gather(self, state: TrainerState) -> None:
        recording = self._open(state)
        numbers = self._gatherer.gather(state, lambda: self._own_numbers(state))
        # What the last step's own report has said is not said again: the state holds means over the epoch.
        step, said = self._latest_report
        if step == state.step:
            numbers = {name: value for name, value in numbers.items() if name not in said}
        if numbers:
            recording.record(state.step, state.epoch, numbers)

    def _own_numbers(self, state: TrainerState) -> dict[str, float]:
        return self._phases.numbers(state.step, state.agent_step)

    def _mention_lost_report(self) -> None:
        if not self._mentioned:
            self._mentioned = True
            logger.info("numbers are reported before a run has begun, or after its end: they are not kept")

    # -- checkpoints ----------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def save_plugin_state(self, state: TrainerState) -> dict[str, Any] | None:
        """All that was reported before the checkpoint is in the database when the checkpoint is valid."""
        self._gather(state)  # what belongs to this moment, before the checkpoint rather than after it
        # Until the next event: what is saved is copied on the training thread, and written elsewhere.
        self._enter("checkpoint")
        recording = self._open(state)
        if not recording.has_database:
            return None
        saved_at = recording.record(state.step, state.epoch, {SAVED: 1.0})
        state.shared["metrics"]["before_checkpoint"] = recording.flush_database()
        return {"saved_at": saved_at, "unlocked": sorted(self._lessons.unlocked)}

    @hookimpl(scope="driver")
    def load_plugin_state(self, state: TrainerState, saved: Mapping[str, Mapping[str, Any]]) -> None:
        recording = self._open(state)
        self._is_restored = True
        self._gatherer.note_restored(state)
        own = saved.get("metrics")
        if own is not None and recording.has_database:
            self._lessons.unlocked.update(own["unlocked"])
            _rewind(recording, own["saved_at"])

    # -- where the time goes --------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_epoch_start(self, state: TrainerState) -> None:
        self._open(state).moment.epoch = state.epoch
        self._phases.leave_all()

    @hookimpl(scope="driver")
    def on_weights_updated(self) -> None:
        # There is a rollout worker: epochs before the first rollout are a warm start.
        if self._recording is not None and self._recording.moment.epoch_kind == "train":
            self._recording.moment.enter_epochs("warm start")

    @hookimpl(scope="driver")
    def on_rollout_start(self) -> None:
        if self._recording is not None:
            self._recording.moment.enter_epochs("rollout")
        self._enter("rollout")

    @hookimpl(scope="driver")
    def on_rollout_end(self, context: HookContext, rollout: Rollout) -> None:
        self._leave("rollout")
        recording = self._recording
        if recording is not None:
            moment = recording.moment
            moment.lesson = context.lesson_id
            moment.reward = rollout.stats.get("mean_reward", moment.reward)
            numbers = self._lessons.after_rollout(context, rollout)
            if numbers:
                recording.record(moment.step, moment.epoch, numbers, "the curriculum's lessons")

    @hookimpl(scope="driver")
    def on_curriculum_update(self, changes: Mapping[str, Any]) -> None:
        if self._recording is not None:
            moment = self._recording.moment
            numbers = self._lessons.after_update(changes)
            self._recording.record(moment.step, moment.epoch, numbers, "the curriculum's lessons")

    @hookimpl(scope="driver")
    def on_train_phase_start(self) -> None:
        self._enter("train")

    @hookimpl(scope="driver")
    def on_train_phase_end(self) -> None:
        self._leave("train")

    @hookimpl(scope="driver")
    def pre_validation(self) -> None:
        self._enter("validation")

    @hookimpl(scope="driver")
    def post_validation(self) -> None:
        self._leave("validation")

    @hookimpl(scope="driver")
    def on_evaluation_start(self) -> None:
        self._enter("evaluation")

    @hookimpl(scope="driver")
    def on_evaluation_end(self, scores: Mapping[str, float]) -> None:
        self._leave("evaluation")
        self._gatherer.note_new_scores(scores)

    def _enter(self, phase: Phase) -> None:
        self._phases.enter(phase)
        self._show_phase()

    def _leave(self, phase: Phase) -> None:
        self._phases.leave(phase)
        self._show_phase()

    def _show_phase(self) -> None:
        if self._recording is not None:
            self._recording.moment.phase = self._phases.current

    # -- the command line -----------------------------------------------------------------------------------------

    @hookimpl
    def register_commands(self) -> dict[str, Callable[..., Any]]:
        from hookline_metrics.commands import report, runs

        return {"runs": runs, "report": report}


def _next_multiple(step: int, n: int) -> int:
    return (step // n + 1) * n if n else 0


def _rewind(recording: Recording, saved_at: float | None) -> None:
    # Not at the module's head: listing plugins needs no database.
    from hookline_metrics.sinks.sqlite import rewind

    assert recording.folder is not None, "a run without a folder has no database"
    rewind(recording.folder, saved_at)


def _write_report(folder: Path) -> None:
    from hookline_metrics.report.page import write_report

    write_report(folder, folder / "report.html")
