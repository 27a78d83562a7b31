"""`EvaluationHook`: plays fresh episodes every so many rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.hooks.hook import Hook
from hookline.hooks.periodic import PeriodicHook
from hookline_hookspecs import HookContext

if TYPE_CHECKING:
    from hookline.rollout.lessons import CurriculumConfig

__all__ = ["EvaluationHook", "default_hooks"]


class EvaluationHook(PeriodicHook):
    """Evaluates all lessons, which may graduate them, or only the current one, which does not move the curriculum.

    Runs on worker 0 only. Its scores are called `inference.{eval_type}/{lesson}/{score}`.
    """

    # It decides on lessons: one that cannot be evaluated must not pass unnoticed.
    critical = True

    def __init__(
        self,
        frequency: int,
        n_examples: int = 64,
        eval_type: str = "eval",
        evaluate_all_lessons: bool = True,
        start_step: int = 0,
    ) -> None:
        super().__init__(frequency, start_step)
        self.n_examples = n_examples
        self.eval_type = eval_type
        self.evaluate_all_lessons = evaluate_all_lessons

    def should_run(self, context: HookContext) -> bool:
        is_due = super().should_run(context)
        has_lesson = self.evaluate_all_lessons or context.lesson_id is not None
        return is_due and has_lesson and context.worker.config.worker_index == 0

    def run(self, context: HookContext) -> dict[str, float]:
        scores: dict[str, float] = context.worker.evaluate(
            None if self.evaluate_all_lessons else [context.lesson_id],
            n_examples=self.n_examples,
            eval_type=self.eval_type,
            rng=context.rng,
            moves_curriculum=self.evaluate_all_lessons,
        )
        context.worker.tracker.log(scores, step=context.step)
        return scores


def default_hooks(config: CurriculumConfig) -> list[Hook]:
    """A glance at the current lesson and an evaluation of all lessons, as often as the config says."""
    hooks: list[Hook] = []
    if config.micro_eval_frequency is not None:
        hooks.append(
            EvaluationHook(
                frequency=config.micro_eval_frequency,
                n_examples=config.micro_eval_n_examples,
                eval_type="micro_eval",
                evaluate_all_lessons=False,
            )
        )
    if config.eval_frequency is not None:
        hooks.append(EvaluationHook(frequency=config.eval_frequency, n_examples=config.eval_n_examples))
    return hooks
