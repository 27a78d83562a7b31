"""The hooks that a worker comes with, or can be given: evaluation, a log, metrics, and checkpoints of its state."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.hooks.hook import Hook, PeriodicHook
from hookline_hookspecs import HookContext
from hookline_hookspecs.files import write_atomically

if TYPE_CHECKING:
    from hookline.rollout.lessons import CurriculumConfig

__all__ = ["CheckpointHook", "EvaluationHook", "LoggingHook", "MetricsHook", "default_hooks"]

logger = logging.getLogger("hookline.hooks")


class EvaluationHook(PeriodicHook):
    """Evaluates all lessons, which may graduate them, or only the current one, which does not move the curriculum.

    Runs on worker 0 only. Its scores are called `inference.{eval_type}/{lesson}/{score}`. Two of one `eval_type` that
    fall on one step give the same names: the scores of the first stand in that step's results.
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


class LoggingHook(PeriodicHook):
    """Logs the step, the lesson, and the numbers among the context's metadata."""

    def __init__(self, frequency: int = 100, start_step: int = 0, level: int = logging.INFO) -> None:
        super().__init__(frequency, start_step)
        self.level = level

    def run(self, context: HookContext) -> None:
        numbers = [f"{k}={v:.4g}" for k, v in context.metadata.items() if isinstance(v, (int, float))]
        logger.log(self.level, "step %d, lesson %r: %s", context.step, context.lesson_id, ", ".join(numbers))


class MetricsHook(PeriodicHook):
    """Logs what `metrics_fn(context)` returns to the worker's tracker.

    :param metrics_fn: None for the numbers among the context's metadata.
    """

    def __init__(
        self,
        frequency: int = 100,
        metrics_fn: Callable[[HookContext], Mapping[str, Any]] | None = None,
        start_step: int = 0,
    ) -> None:
        super().__init__(frequency, start_step)
        self.metrics_fn = metrics_fn or _numbers

    def run(self, context: HookContext) -> dict[str, Any]:
        metrics = dict(self.metrics_fn(context))
        context.worker.tracker.log(metrics, step=context.step)
        return metrics


def _numbers(context: HookContext) -> dict[str, float]:
    return {f"worker/{name}": v for name, v in context.metadata.items() if isinstance(v, (int, float))}


class CheckpointHook(PeriodicHook):
    """Writes what `worker.state_dict()` gives to `directory/worker-0-step-000100.json`.

    A file is complete or is not there: it is written beside its place, made durable, and renamed.
    """

    critical = True

    def __init__(self, frequency: int, directory: str | Path, start_step: int = 0) -> None:
        super().__init__(frequency, start_step)
        self.directory = Path(directory)

    def run(self, context: HookContext) -> dict[str, Any]:
        self.directory.mkdir(parents=True, exist_ok=True)
        index = context.worker.config.worker_index
        path = self.directory / f"worker-{index}-step-{context.step:06d}.json"
        write_atomically(path, json.dumps(context.worker.state_dict()), durable=True)
        return {"checkpoint.path": str(path)}
