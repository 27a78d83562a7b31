"""`EvaluationHook`: the plugin as a `TrainerHook`, for `trainer.add_hook`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from hookline_evaluation.options import Options
from hookline_evaluation.plugin import Evaluation
from hookline_evaluation.replays.storage import upload_replay
from hookline_hookspecs import CheckpointRecord, Emit, EvalRewardSummary, ReplayRecord, TrainerHook, TrainerState

__all__ = ["EvalRewardSummary", "EvaluationConfig", "EvaluationHook"]

EvaluationConfig: TypeAlias = Options
"""The config of the hook has the plugin's options."""


class EvaluationHook(TrainerHook):
    """Evaluates the policy at the intervals of its config, and at the end.

    A subclass may override `on_epoch_end`. If it does not call `super()`, only the end of the run is evaluated.

    :param eval_config: what is evaluated and how often; None for no evaluation.
    :param curriculum: its lessons are evaluated, unless the config names lessons.
    """

    def __init__(self, eval_config: EvaluationConfig | None, curriculum: Any) -> None:
        self.eval_config = eval_config
        self.curriculum = curriculum
        self.eval_scores = EvalRewardSummary()
        self._evaluation: Evaluation | None = None

    def get_eval_scores(self) -> EvalRewardSummary:
        return self.eval_scores

    def on_new_training_run(self, state: TrainerState, emit: Emit) -> None:
        if self.eval_config is not None:
            lessons = self.eval_config.lessons or tuple(self.curriculum.lessons)
            self._evaluation = Evaluation(replace(self.eval_config, lessons=lessons), emit)
            self._evaluation.on_new_training_run(state)

    def pre_training(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        if self._evaluation is not None:
            self._evaluation.pre_training(state, report_data)

    def post_training_step(self, state: TrainerState) -> None:
        if self._evaluation is not None:
            self._evaluation.evaluate_by_steps(state)

    def on_epoch_start(self, state: TrainerState) -> None:
        if self._evaluation is not None:
            self._evaluation.on_epoch_start(state)

    def on_epoch_end(
        self, checkpoint_hook: Any, trainer_state: TrainerState, stats_client: Any, wandb_run: Any
    ) -> None:
        """Evaluate at intervals.

        Only `trainer_state` is used here. The other arguments are for subclasses.
        """
        del checkpoint_hook, stats_client, wandb_run
        if self._evaluation is not None:
            self._evaluation.on_epoch_end(trainer_state)

    def on_checkpoint_saved(self, state: TrainerState, checkpoint: CheckpointRecord) -> None:
        if self._evaluation is not None:
            self._evaluation.on_checkpoint_saved(state, checkpoint)

    def on_training_complete(self, state: TrainerState) -> None:
        if self._evaluation is not None:
            self._evaluation.on_training_complete(state)

    def on_training_failed(self) -> None:
        if self._evaluation is not None:
            self._evaluation.on_training_failed()

    def on_replay_saved(self, state: TrainerState, replay: ReplayRecord, wandb_run: Any) -> None:
        upload_replay(wandb_run, replay, state.run_id)

    def on_evaluation_end(self, state: TrainerState, scores: Mapping[str, float]) -> None:
        summary = EvalRewardSummary.of(scores, state.shared["evaluation"].get("epoch"))
        if summary.lesson_scores:
            self.eval_scores = summary
