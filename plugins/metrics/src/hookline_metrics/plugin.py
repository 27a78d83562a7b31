"""The plugin: which metrics are recorded, and at which events."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
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
from hookline_metrics.collecting import calling_code
from hookline_metrics.digest import CollectedMetrics
from hookline_metrics.measurements import Phase, gradient_statistics
from hookline_metrics.options import Options
from hookline_metrics.recording import Recording, all_sinks
from hookline_metrics.sinks import DATABASE, SAVED

__all__ = ["Metrics"]

logger = logging.getLogger("hookline.metrics")


class Metrics:
    """Records every metric of the run, shows progress, and touches the file `heartbeat` until the run ends.

    The training thread collects the metrics, since `collect_metrics` is emitted there, and notes what happens. The
    threads of `Recording` do everything else.
    """

    # So that an epoch's report includes the scores of that epoch's evaluation.
    after: tuple[str, ...] = ("evaluation", "checkpoint")

    def __init__(self, options: Options, emit: Emit | None = None) -> None:
        self._options = options
        self._emit = emit
        self._recording: Recording | None = None
        self._collected_at: tuple[Path | None, int, int] | None = None
        self._is_in_rollout = False
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
        if state.resume and not self._is_restored and recording.has_database:
            # There was no checkpoint to resume from, so training starts over and records all rows again.
            _rewind(recording, None)
        live = recording.live
        live.thread = threading.current_thread()
        live.start_epoch, live.start_step = report_data.get("start_epoch", state.epoch), state.step
        live.total_epochs, live.total_steps, live.step = state.total_epochs, state.total_steps, state.step
        recording.later(recording.digest.begin_training, state.step, state.agent_step, perf_counter())
        recording.record(state.step, None, {STARTED: 1.0})
        self._has_started = True

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        recording = self._open(state)
        recording.later(recording.digest.leave_all, perf_counter())
        self._collect(state, recording)
        recording.record(state.step, state.epoch, {"run/completed": 1.0})

    @hookimpl(scope="driver")
    def on_training_failed(self, state: TrainerState) -> None:
        # A run that failed before it started must not mark the earlier run in the same folder as failed.
        if self._recording is not None and self._has_started:
            self._collect(state, self._open(state)).record(state.step, state.epoch, {"run/failed": 1.0})

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
            self._has_started = self._is_restored = self._is_in_rollout = False
            self._collected_at = None
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
        names = recording.names
        numbers = report_data.copy()
        if not names.known.issuperset(numbers):
            numbers = dict(names.valid(numbers, calling_code))
        recording.later(recording.digest.add_report, step, numbers, time.time())

    def _measuring_gradients(self, every: int) -> Callable[..., None]:
        @hookimpl(specname="on_mb_end", every=every, scope="driver")
        def measure(state: TrainerState) -> None:
            if self._recording is not None:
                numbers = gradient_statistics(state.policy)
                self._recording.record(state.step, state.epoch, numbers, "the policy's modules")

        return measure

    @hookimpl(every=1, scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        recording = self._open(state)
        recording.later(recording.digest.leave_all, perf_counter())
        self._collect(state, recording)
        recording.later(recording.live.end_epoch, state.epoch, time.monotonic())

    def _collect(self, state: TrainerState, recording: Recording) -> Recording:
        """Note the metrics of all sources. Each is read once for each step."""
        position = state.run_dir, state.epoch, state.step
        if position == self._collected_at:
            # The end of a run is usually also the end of an epoch, whose metrics were collected just before.
            collected = CollectedMetrics(position, state.agent_step, dict(state.eval_scores), {}, None)
        else:
            self._collected_at = position
            collected = CollectedMetrics(
                position,
                state.agent_step,
                dict(state.eval_scores),
                self._own_numbers(),
                (("state.loss_stats", dict(state.loss_stats)), ("state.rollout_stats", dict(state.rollout_stats))),
                self._numbers_of_plugins(state),
            )
        recording.later(recording.digest.add_collected, collected, perf_counter(), time.time())
        return recording

    def _own_numbers(self) -> Mapping[str, float]:
        """Metrics besides those that the plugin measures."""
        return {}

    def _numbers_of_plugins(self, state: TrainerState) -> list[tuple[str, Any]]:
        if self._emit is None:
            return []
        return [
            # Copied, since a plugin may return a dictionary that it goes on to change.
            (f"plugin {plugin!r}", dict(numbers) if isinstance(numbers, Mapping) else numbers)
            for plugin, numbers in self._emit.collect_metrics(state=state).items()
        ]

    def _log_lost_report(self) -> None:
        if not self._has_logged_lost_report:
            self._has_logged_lost_report = True
            logger.info("metrics logged before a run starts or after it ends are not recorded")

    # -- checkpoints ----------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def save_plugin_state(self, state: TrainerState) -> dict[str, Any] | None:
        """Write all metrics up to this checkpoint to the database before the checkpoint becomes valid."""
        # Metrics of this step belong before the checkpoint, not after it.
        recording = self._collect(state, self._open(state))
        # The phase lasts until the next event. State is copied on the training thread and written on another.
        self._enter("checkpoint")
        if not recording.has_database:
            return None
        saved_at = recording.record(state.step, state.epoch, {SAVED: 1.0})
        recording.catch_up()
        state.shared["metrics"]["before_checkpoint"] = recording.flush_database()
        return {"saved_at": saved_at, "unlocked": sorted(recording.digest.lessons.unlocked)}

    @hookimpl(scope="driver")
    def load_plugin_state(self, state: TrainerState, saved: Mapping[str, Mapping[str, Any]]) -> None:
        recording = self._open(state)
        self._is_restored = True
        # The database of a checkpoint has the state's metrics.
        self._collected_at = state.run_dir, state.epoch, state.step
        recording.catch_up()
        recording.digest.scores.mark_recorded(state.eval_scores, state.step)
        own = saved.get("metrics")
        if own is not None and recording.has_database:
            recording.digest.lessons.unlocked.update(own["unlocked"])
            _rewind(recording, own["saved_at"])

    # -- files ----------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_replay_saved(self, replay: ReplayRecord) -> None:
        if self._recording is not None:
            self._recording.later(self._recording.pass_on, replay)

    @hookimpl(scope="driver")
    def on_checkpoint_saved(self, checkpoint: CheckpointRecord) -> None:
        if self._recording is not None:
            self._recording.later(self._recording.pass_on, checkpoint)

    # -- phases ---------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_epoch_start(self, state: TrainerState) -> None:
        self._is_in_rollout = False  # a rollout that failed has no end
        recording = self._open(state)
        totals = state.total_epochs, state.total_steps
        recording.later(recording.digest.begin_epoch, state.epoch, *totals, perf_counter())

    @hookimpl(scope="driver")
    def on_weights_updated(self) -> None:
        if self._recording is not None:
            self._recording.later(self._recording.digest.update_weights)

    @hookimpl(scope="driver")
    def on_rollout_start(self) -> None:
        self._is_in_rollout = True
        if self._recording is not None:
            self._recording.later(self._recording.digest.begin_rollout, perf_counter())

    @hookimpl(scope="driver")
    def on_rollout_end(self, context: HookContext, rollout: Rollout) -> None:
        self._is_in_rollout = False
        recording = self._recording
        if recording is not None:
            what = context.lesson_id, context.metadata.get("performance"), dict(rollout.stats), tuple(rollout.episodes)
            recording.later(recording.digest.end_rollout, *what, perf_counter(), time.time())

    @hookimpl(scope="driver")
    def on_episodes_filtered(self, batch: EpisodeBatch) -> None:
        # For loops without rollouts. The episodes of a rollout are held at its end.
        if self._recording is not None and not self._is_in_rollout:
            self._recording.later(self._recording.digest.hold, batch.lesson_id, batch.episodes)

    @hookimpl(scope="driver")
    def on_curriculum_update(self, changes: Mapping[str, Any]) -> None:
        if self._recording is not None:
            self._recording.later(self._recording.digest.update_curriculum, dict(changes), time.time())

    @hookimpl(scope="driver")
    def on_train_phase_start(self) -> None:
        if self._recording is not None:
            self._recording.later(self._recording.digest.begin_train_phase, perf_counter())

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
        if self._recording is not None:
            self._recording.later(self._recording.digest.scores.announce, dict(scores))

    def _enter(self, phase: Phase) -> None:
        if self._recording is not None:
            self._recording.later(self._recording.digest.enter, phase, perf_counter())

    def _leave(self, phase: Phase) -> None:
        if self._recording is not None:
            self._recording.later(self._recording.digest.leave, phase, perf_counter())

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
