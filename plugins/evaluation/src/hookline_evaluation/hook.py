"""`EvaluationHook`: the plugin in the style of a `TrainerHook`, for `trainer.add_hook`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from hookline.training import TrainerHook
from hookline_evaluation.options import Options
from hookline_evaluation.plugin import Evaluation
from hookline_evaluation.replays.uploading import upload_replay
from hookline_hookspecs import CheckpointRecord, Emit, ReplayRecord, TrainerState

__all__ = ["EvalRewardSummary", "EvaluationConfig", "EvaluationHook"]

REWARD: Final = "/mean_reward"


EvaluationConfig: TypeAlias = Options
"""What the plugin's options are is the config of a hook."""


@dataclass(frozen=True)
class EvalRewardSummary:
    """The mean rewards of the latest evaluation."""

    lesson_scores: dict[str, float] = field(default_factory=dict)
    category_scores: dict[str, float] = field(default_factory=dict)
    epoch: int | None = None
    """The epoch that was evaluated, None before the first evaluation."""

    @property
    def avg_lesson_score(self) -> float | None:
        return _mean(self.lesson_scores)

    @property
    def avg_category_score(self) -> float | None:
        return _mean(self.category_scores)


class EvaluationHook(TrainerHook):
    """Evaluates the policy at the intervals of its config, and at the end.

    :param eval_config: what is evaluated and how often; None for never.
    :param curriculum: its lessons are evaluated, unless the config names some.
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

    def on_epoch_start(self, state: TrainerState) -> None:
        if self._evaluation is not None:
            self._evaluation.on_epoch_start(state)

    def on_epoch_end(self, state: TrainerState) -> None:
        if self._evaluation is not None:
            self._evaluation.on_epoch_end(state)

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
        lessons, categories = _rewards("eval/", scores), _rewards("eval_category/", scores)
        if lessons:
            self.eval_scores = EvalRewardSummary(lessons, categories, state.shared["evaluation"].get("epoch"))


def _rewards(prefix: str, scores: Mapping[str, float]) -> dict[str, float]:
    """The mean rewards by what lies between prefix and score."""
    return {
        name[len(prefix) : -len(REWARD)]: value
        for name, value in scores.items()
        if name.startswith(prefix) and name.endswith(REWARD) and len(name) > len(prefix) + len(REWARD)
    }


def _mean(scores: Mapping[str, float]) -> float | None:
    return sum(scores.values()) / len(scores) if scores else None
