"""The plugin: which metrics are recorded, and at which events."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookline_hookspecs import (
    CheckpointRecord,
    Emit,
    EpisodeBatch,
    HookContext,
    ReplayRecord,
    Rollout,
    TrainerState,
    hookimpl,
)
from hookline_hookspecs.redaction import redact
from hookline_hookspecs.sinks import STARTED, Run, Sink
from hookline_metrics.collecting import MetricsCollector, calling_code
from hookline_metrics.measurements import LessonMetrics, Phase, PhaseTimer, gradient_statistics
from hookline_metrics.options import Options
from hookline_metrics.recording import Recording, all_sinks
from hookline_metrics.sinks import DATABASE, SAVED

__all__ = ["Metrics"]

logger = logging.getLogger("hookline.metrics")


class Metrics:
    """Records every metric of the run, shows progress, and touches the file `heartbeat` until the run ends.

    The training thread collects the metrics, since `collect_metrics` is emitted there, and appends them to queues.
    The threads of `Recording` do everything else.
    """

    # So that an epoch's report includes the scores of that epoch's evaluation.
    after: tuple[str, ...] = ("evaluation", "checkpoint")

    def __init__(self, options: Options, emit: Emit | None = None) -> None:
        self._options = options
        self._emit = emit
        self._collector = MetricsCollector(emit)
        self._phases = PhaseTimer()
        self._lessons = LessonMetrics()
        self._recording: Recording | None = None
        self._has_started = False
        self._is_restored = False
        self._has_logged_lost_report = False
        if options.gradients_every:  # set on the instance, since an option is its schedule
            self.measure_gradients = self._measuring_gradients(options.gradients_every)

    # -- the run --------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        self._open(state)

    @hookimpl(scope="driver")
    def pre_training(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        recording = self._open(state)
        recording.live.thread = threading.current_thread()
        if state.resume and not self._is_restored and recording.has_database:
            # There was no checkpoint to resume from, so training starts over and records all rows again.
            _rewind(recording, None)
        recording.live.start_step = state.step
        recording.live.start_epoch = report_data.get("start_epoch", state.epoch)
        self._phases.restart(state.step, state.agent_step)
        recording.record(state.step, None, {STARTED: 1.0})
        self._has_started = True

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._phases.leave_all()
        self._collect(state)
        self._open(state).record(state.step, state.epoch, {"run/completed": 1.0})

    @hookimpl(scope="driver")
    def on_training_failed(self, state: TrainerState) -> None:
        # A run that failed before it started must not mark the earlier run in the same folder as failed.
        if self._recording is not None and self._has_started:
            self._collect(state)
            self._recording.record(state.step, state.epoch, {"run/failed": 1.0})

    # Last, so that what the training thread collects in the same event is written too.
    @hookimpl(specname="on_training_complete", background=True, scope="driver", trylast=True)
    def end_complete_run(self) -> None:
        self._end()

    @hookimpl(specname="on_training_failed", background=True, scope="driver", trylast=True)
    def end_failed_run(self) -> None:
        self._end()

    def _open(self, state: TrainerState) -> Recording:
        """The recording of this run. Opened at the first call."""
        recording = self._recording
        if recording is None or (recording.folder is not state.run_dir and recording.folder != state.run_dir):
            self._end()
            self._recording = recording = Recording(state.run_dir, self._sinks(state), self._options)
            self._phases, self._lessons = PhaseTimer(), LessonMetrics()
            self._has_started = self._is_restored = False
            recording.failures.current = state.shared["hookline"].get("failures", list)
        live = recording.live
        live.total_epochs, live.total_steps, live.step = state.total_epochs, state.total_steps, state.step
        return recording

    def _sinks(self, state: TrainerState) -> Mapping[str, Callable[[], Sink]]:
        if state.run_dir is None:
            return {}
        config = redact(json.loads(json.dumps(redact(getattr(state, "config", {})), default=str)))
        run = Run(state.run_dir, state.run_id, config, state.resume, state.shared["metrics"])
        return all_sinks(self._options, run, self._emit)

    def _end(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            for sink in recording.end():
                if sink == DATABASE and self._options.report and recording.folder is not None:
                    _write_report(recording.folder)

    # -- metrics --------------------------------------------------------------------------------------------------

    @hookimpl
    def log_metrics(self, report_data: dict[str, Any], step: int) -> None:
        recording = self._recording
        if recording is None:
            self._log_lost_report()
            return
        numbers, live = report_data.copy(), recording.live
        # Not metrics, since every row has its step and epoch.
        epoch = numbers.pop("current_epoch", None)
        numbers.pop("current_step", None)
        numbers.pop("total_steps", None)
        recording.record(step, epoch if type(epoch) is int else live.epoch, numbers, calling_code)
        live.numbers = {**live.numbers, **numbers} if step == live.numbers_step else numbers
        live.step = live.numbers_step = step

    def _measuring_gradients(self, every: int) -> Callable[..., None]:
        @hookimpl(specname="on_mb_end", every=every, scope="driver")
        def measure(state: TrainerState) -> None:
            if self._recording is not None:
                numbers = gradient_statistics(state.policy)
                self._recording.record(state.step, state.epoch, numbers, "the policy's modules")

        return measure

    @hookimpl(every=1, scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self._leave_all()
        self._collect(state).live.end_epoch(state.epoch, time.monotonic())

    def _collect(self, state: TrainerState) -> Recording:
        recording = self._open(state)
        recording.episodes.release()
        numbers = self._collector.collect(state, lambda: self._own_numbers(state))
        # Metrics of the last step's own report win over those of the state, which are means over the epoch.
        reported = recording.live.numbers
        if recording.live.numbers_step == state.step and not reported.keys().isdisjoint(numbers):
            numbers = {name: value for name, value in numbers.items() if name not in reported}
        if numbers:
            recording.record(state.step, state.epoch, numbers)
        return recording

    def _own_numbers(self, state: TrainerState) -> dict[str, float]:
        return self._phases.numbers(state.step, state.agent_step)

    def _log_lost_report(self) -> None:
        if not self._has_logged_lost_report:
            self._has_logged_lost_report = True
            logger.info("metrics logged before a run starts or after it ends are not recorded")

    # -- checkpoints ----------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def save_plugin_state(self, state: TrainerState) -> dict[str, Any] | None:
        """Write all metrics up to this checkpoint to the database before the checkpoint becomes valid."""
        recording = self._collect(state)  # metrics of this step belong before the checkpoint, not after it
        # The phase lasts until the next event. State is copied on the training thread and written on another.
        self._enter("checkpoint")
        if not recording.has_database:
            return None
        saved_at = recording.record(state.step, state.epoch, {SAVED: 1.0})
        state.shared["metrics"]["before_checkpoint"] = recording.flush_database()
        return {"saved_at": saved_at, "unlocked": sorted(self._lessons.unlocked)}

    @hookimpl(scope="driver")
    def load_plugin_state(self, state: TrainerState, saved: Mapping[str, Mapping[str, Any]]) -> None:
        recording = self._open(state)
        self._is_restored = True
        self._collector.mark_recorded(state)
        own = saved.get("metrics")
        if own is not None and recording.has_database:
            self._lessons.unlocked.update(own["unlocked"])
            _rewind(recording, own["saved_at"])

    # -- files ----------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_replay_saved(self, replay: ReplayRecord) -> None:
        if self._recording is not None:
            self._recording.pass_on(replay)

    @hookimpl(scope="driver")
    def on_checkpoint_saved(self, checkpoint: CheckpointRecord) -> None:
        if self._recording is not None:
            self._recording.pass_on(checkpoint)

    # -- phases ---------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_epoch_start(self, state: TrainerState) -> None:
        self._open(state).live.epoch = state.epoch
        self._leave_all()

    @hookimpl(scope="driver")
    def on_weights_updated(self) -> None:
        # Only a run with a rollout worker emits this. Its epochs before the first rollout are a warm start.
        if self._recording is not None and self._recording.live.epoch_kind == "train":
            self._recording.live.enter_epochs("warm start")

    @hookimpl(scope="driver")
    def on_rollout_start(self) -> None:
        if self._recording is not None:
            self._recording.live.enter_epochs("rollout")
            self._recording.episodes.release()
        self._enter("rollout")

    @hookimpl(scope="driver")
    def on_rollout_end(self, context: HookContext, rollout: Rollout) -> None:
        self._leave("rollout")
        recording = self._recording
        if recording is not None:
            live = recording.live
            live.lesson = context.lesson_id
            live.reward = rollout.stats.get("mean_reward", live.reward)
            recording.episodes.hold(live.step, live.epoch, context.lesson_id, rollout.episodes)
            numbers = self._lessons.after_rollout(context, rollout)
            if numbers:
                recording.record(live.step, live.epoch, numbers, "the curriculum's lessons")

    @hookimpl(scope="driver")
    def on_episodes_filtered(self, batch: EpisodeBatch) -> None:
        # For loops without rollouts. The episodes of a rollout are held at its end.
        if self._recording is not None and self._phases.current != "rollout":
            live = self._recording.live
            self._recording.episodes.hold(live.step, live.epoch, batch.lesson_id, batch.episodes)

    @hookimpl(scope="driver")
    def on_curriculum_update(self, changes: Mapping[str, Any]) -> None:
        if self._recording is not None:
            live = self._recording.live
            numbers = self._lessons.after_update(changes)
            self._recording.record(live.step, live.epoch, numbers, "the curriculum's lessons")

    @hookimpl(scope="driver")
    def on_train_phase_start(self) -> None:
        if self._recording is not None:
            self._recording.episodes.release()
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
        self._collector.add_new_scores(scores)

    def _enter(self, phase: Phase) -> None:
        self._phases.enter(phase)
        self._show_phase()

    def _leave(self, phase: Phase) -> None:
        self._phases.leave(phase)
        self._show_phase()

    def _leave_all(self) -> None:
        self._phases.leave_all()
        self._show_phase()

    def _show_phase(self) -> None:
        if self._recording is not None:
            self._recording.live.phase = self._phases.current

    # -- the command line -----------------------------------------------------------------------------------------

    @hookimpl
    def register_commands(self) -> dict[str, Callable[..., Any]]:
        from hookline_metrics.commands import report, runs, serve

        return {"runs": runs, "report": report, "serve": serve}


def _rewind(recording: Recording, saved_at: float | None) -> None:
    # Imported here so that listing plugins does not import sqlite3.
    from hookline_metrics.sinks.sqlite import rewind

    assert recording.folder is not None, "a run without a folder has no database"
    rewind(recording.folder, saved_at)


def _write_report(folder: Path) -> None:
    from hookline_metrics.report.page import write_report

    write_report(folder, folder / "report.html")
