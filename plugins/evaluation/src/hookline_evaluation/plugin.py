"""The plugin: it decides when the policy is evaluated, and publishes the scores and replays.

The evaluation itself is done by the plugins that implement `evaluate_policy`, such as Hookline's trainer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from hookline_evaluation.options import Options
from hookline_evaluation.out_of_process.checkpoint_evaluations import CheckpointEvaluations
from hookline_evaluation.out_of_process.jobs import EvaluationJob, EvaluationOutcome, PendingEvaluation
from hookline_evaluation.replays.storage import write_replay
from hookline_hookspecs import (
    CheckpointRecord,
    Emit,
    EvaluationRequest,
    ReplayRecord,
    TrainerState,
    Watch,
    hookimpl,
)

__all__ = ["Evaluation"]

logger = logging.getLogger("hookline.evaluation")


class Evaluation:
    """Evaluates every so many epochs and at the end. Scores go into `state.eval_scores`, episodes into `replays/`.

    In the modes `in-process` and `workers` it emits `evaluate_policy`, which Hookline's trainer implements. In the
    modes `background` and `remote`, checkpoints are evaluated while training goes on, and their scores are published
    when a later epoch starts.
    """

    def __init__(self, options: Options, emit: Emit) -> None:
        self.options = options
        self._emit = emit
        self._has_logged_no_evaluator = False
        self._begin_anew()
        if options.every_steps is not None:

            @hookimpl(scope="driver")
            def post_training_step(state: TrainerState) -> None:
                self.evaluate_by_steps(state)

            # Set on the instance, so that the plugin is not called at every step of other runs.
            self.post_training_step = post_training_step

    def _begin_anew(self) -> None:
        of_checkpoints = self.options.mode in ("background", "remote")
        self._elsewhere = CheckpointEvaluations(self._begin_elsewhere) if of_checkpoints else None
        self._evaluated_at: tuple[int, int] | None = None
        self._deadline: float | None = None
        self._by_epochs: Watch | None = None
        self._by_steps = Watch(self.options.every_steps)
        self._micro = Watch(self.options.micro_every)

    def _count_from(self, state: TrainerState, complete_epochs: int) -> Watch:
        self._by_steps.skip_to(state.step)
        self._micro.skip_to(complete_epochs)
        self._by_epochs = Watch(self.options.full_interval(state.total_epochs), complete_epochs)
        return self._by_epochs

    # -- events ---------------------------------------------------------------------------------------------------

    @hookimpl
    def register_commands(self) -> Mapping[str, Callable[..., Any]]:
        from hookline_evaluation.command import evaluate

        return {"evaluate": evaluate}

    @hookimpl(scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        self._begin_anew()
        if self._elsewhere is not None and state.run_dir is None:
            logger.warning(
                "the policy is not evaluated, since the run has no folder and so no checkpoints. "
                "Give it a folder, or set the option evaluation.mode to 'in-process'"
            )

    @hookimpl(scope="driver")
    def pre_training(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        self._count_from(state, report_data["start_epoch"])

    @hookimpl(scope="driver")
    def on_epoch_start(self, state: TrainerState) -> None:
        if self._elsewhere is not None:
            self._publish_what_is_done(state)

    @hookimpl(scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        # A plugin that joins a run counts from the epoch that it joins in.
        by_epochs = self._by_epochs or self._count_from(state, state.epoch)
        if self._micro.is_due(state.epoch + 1):
            self._evaluate_here(state, self.options.micro_request())
        if by_epochs.is_due(state.epoch + 1):
            self._evaluate_fully(state)

    def evaluate_by_steps(self, state: TrainerState) -> None:
        if self._by_steps.is_due(state.step):
            self._evaluate_fully(state)

    @hookimpl(scope="driver")
    def on_checkpoint_saved(self, state: TrainerState, checkpoint: CheckpointRecord) -> None:
        if self._elsewhere is not None:
            self._elsewhere.add_checkpoint(checkpoint)
            if self._deadline is None:
                self._publish_what_is_done(state)
            else:
                self._finish_elsewhere(state)

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        if self._elsewhere is None:
            self._evaluate_fully(state)
            return
        self._deadline = time.monotonic() + self.options.deadline_seconds
        if not self._elsewhere.is_evaluated(state.epoch, state.step):
            self._elsewhere.request(self.options.full_request())
        if self._elsewhere.has_checkpoint_of(state.epoch, state.step):
            self._finish_elsewhere(state)
        # Otherwise the last checkpoint is not saved yet, and `on_checkpoint_saved` does this.

    @hookimpl(scope="driver")
    def on_training_failed(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.stop()

    def _evaluate_fully(self, state: TrainerState) -> None:
        if self._elsewhere is not None:
            self._elsewhere.request(self.options.full_request())
        elif self._evaluated_at != (state.epoch, state.step):  # the end of an epoch or run may follow a step that was
            self._evaluate_here(state, self.options.full_request())

    # -- in process -----------------------------------------------------------------------------------------------

    def _evaluate_here(self, state: TrainerState, request: EvaluationRequest) -> None:
        self._emit.on_evaluation_start(state=state, request=request)
        result = self._emit.evaluate_policy(state=state, request=request)
        if result is None:
            self._log_no_evaluator()
            return
        outcome = EvaluationOutcome.of(result)
        if request.kind == "full":
            self._evaluated_at = state.epoch, state.step
        self._publish(state, outcome, outcome.scores, state.epoch, state.step)

    def _log_no_evaluator(self) -> None:
        if not self._has_logged_no_evaluator:
            self._has_logged_no_evaluator = True
            # Not a warning: a run on a dataset has no lessons to evaluate, and has its validation.
            logger.info(
                "the policy is not evaluated, since no plugin returned scores from evaluate_policy. A trainer without "
                "rollouts has no lessons to evaluate. Add a plugin that returns scores, or disable 'evaluation'"
            )

    # -- out of process -------------------------------------------------------------------------------------------

    def _begin_elsewhere(self, job: EvaluationJob) -> PendingEvaluation:
        if self.options.mode == "remote":
            from hookline_evaluation.out_of_process.client import RemoteEvaluation

            assert self.options.url is not None
            return RemoteEvaluation(job, self.options.url, self.options.timeout_seconds)
        from hookline_evaluation.out_of_process.child_process import ChildEvaluation

        return ChildEvaluation(job, self.options.timeout_seconds)

    def _publish_what_is_done(self, state: TrainerState) -> None:
        """Publish the scores of an evaluation that has ended, and start the next one."""
        assert self._elsewhere is not None
        try:
            self._publish_late(state, self._elsewhere.collect())
        finally:
            self._begin_next(state)

    def _finish_elsewhere(self, state: TrainerState) -> None:
        """At the end of the run, wait for the evaluation that is running and for the last one after it."""
        assert self._elsewhere is not None
        assert self._deadline is not None
        try:
            try:
                self._publish_late(state, self._elsewhere.finish(self._deadline))
            finally:
                self._begin_next(state)
                self._publish_late(state, self._elsewhere.finish(self._deadline))
        finally:
            self._elsewhere.stop()

    def _begin_next(self, state: TrainerState) -> None:
        assert self._elsewhere is not None
        job = self._elsewhere.begin_next()
        if job is not None:
            self._emit.on_evaluation_start(state=state, request=job.request)

    def _publish_late(self, state: TrainerState, collected: tuple[EvaluationJob, EvaluationOutcome] | None) -> None:
        if collected is not None:
            job, outcome = collected
            belonging = {"eval/epoch": float(job.epoch), "eval/step": float(job.step)}
            self._publish(state, outcome, {**outcome.scores, **belonging}, job.epoch, job.step)

    # -- scores and replays ---------------------------------------------------------------------------------------

    def _publish(
        self, state: TrainerState, outcome: EvaluationOutcome, scores: Mapping[str, float], epoch: int, step: int
    ) -> None:
        state.eval_scores.update(scores)
        state.shared["evaluation"].update(scores=dict(scores), epoch=epoch, step=step)
        self._emit.on_evaluation_end(state=state, scores=dict(scores))
        if outcome.records and state.run_dir is not None:
            path = write_replay(
                state.run_dir,
                outcome.records,
                run_id=state.run_id,
                epoch=epoch,
                step=step,
                scores=outcome.scores,
                by_steps=self.options.every_steps is not None,
            )
            lessons = {record["lesson"] for record in outcome.records}
            replay = ReplayRecord(
                path=path,
                lesson_id=lessons.pop() if len(lessons) == 1 else None,
                episodes=len(outcome.records),
                step=step,
            )
            self._emit.on_replay_saved(state=state, replay=replay)
