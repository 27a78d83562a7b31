"""Class-style hooks: the base `Hook`, periodic and composite hooks, and the built-in ones."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hookline.rng_keys import key_for
from hookline_hookspecs import Every, HookContext
from hookline_hookspecs.files import write_atomically

if TYPE_CHECKING:
    from hookline.rollout.curriculum import CurriculumConfig

__all__ = [
    "CheckpointHook",
    "CompositeHook",
    "EvaluationHook",
    "Hook",
    "LoggingHook",
    "MetricsHook",
    "OwnContext",
    "PeriodicHook",
    "default_hooks",
    "is_hook",
    "parts_of",
]

logger = logging.getLogger("hookline.hooks")

Results = dict[str, Any] | None


class Hook(ABC):
    """Called after every rollout.

    A hook is registered as a plugin. The class attributes `critical`, `on_error`, `after`, `before` and `requires` mean
    the same as on a plugin, and so does `@hookimpl(every=2)`, `schedule=`, `tryfirst=` or `background=` on `run`. With
    a schedule, `should_run` is called only when the schedule is due. Other methods may implement other events.

    An `async def run` is awaited off the training thread, and `should_run` is called there too. Its results are merged
    into those of its step when they are ready.
    """

    hookline_adapter: ClassVar = "hookline.hooks.hook_manager:rollout_hook_plugin"

    @abstractmethod
    def should_run(self, context: HookContext) -> bool:
        """Whether the hook runs at the current step."""

    @abstractmethod
    def run(self, context: HookContext) -> Results | Awaitable[Results]:
        """Run the hook. Its results are merged by name with those of other hooks."""


def is_hook(value: object) -> bool:
    """Whether an object has the methods of a hook, whatever its class."""
    methods = (getattr(value, "should_run", None), getattr(value, "run", None))
    return not isinstance(value, type) and all(map(callable, methods))


@dataclass
class OwnContext(HookContext):
    """The context of one hook, with its own rng key."""

    previous_step: int | None = None
    """The step of the hook's previous call; None at the first."""


class PeriodicHook(Hook):
    """Runs when `step > start_step and step % frequency == 0`, and once if the step counter jumped over such steps.

    It has no state: the context holds the previous step. A hook that a subclass disabled for a while continues at the
    next multiple.
    """

    def __init__(self, frequency: int, start_step: int = 0) -> None:
        Every(frequency)  # validate now, not at the first step
        self.frequency = frequency
        self.start_step = start_step

    def should_run(self, context: HookContext) -> bool:
        previous = getattr(context, "previous_step", None)
        # At the first step, or after the step counter went back, only this step counts.
        last = context.step - 1 if previous is None or previous >= context.step else previous
        return Every(self.frequency, start=self.start_step).is_due(last, context.step)


class CompositeHook(Hook):
    """Several hooks, registered and removed together.

    Each is a separate plugin with its own error policy and quarantine. A subclass that overrides `should_run` or `run`
    is one plugin.
    """

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks = list(hooks)

    @property
    def critical(self) -> bool:
        """Applies where the composite is one plugin."""
        return any(getattr(hook, "critical", False) for hook in self.hooks)

    def should_run(self, context: HookContext) -> bool:
        return any(hook.should_run(own) for hook, own in self._with_contexts(context))

    def run(self, context: HookContext) -> Results:
        """Run the hooks that should run. Errors are raised after all have run."""
        merged: dict[str, Any] = {}
        errors: list[Exception] = []
        for hook, own in self._with_contexts(context):
            try:
                results = hook.run(own) if hook.should_run(own) else None
            except Exception as error:
                errors.append(error)
                continue
            if isinstance(results, Awaitable):
                raise TypeError(
                    f"{type(hook).__name__}.run is async: register the composite with a worker, which awaits it"
                )
            for name in (results or {}).keys() & merged.keys():
                logger.warning(
                    "hook %r: another hook already returned %r at step %d; the first value is kept",
                    type(hook).__name__,
                    name,
                    context.step,
                )
            merged = {**(results or {}), **merged}
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} hooks failed at step {context.step}", errors)
        return merged

    def _with_contexts(self, context: HookContext) -> list[tuple[Hook, HookContext]]:
        return [
            (hook, replace(context, rng=key_for(context.rng, f"{index}:{type(hook).__name__}")))
            for index, hook in enumerate(self.hooks)
        ]


def parts_of(hook: Hook) -> list[Hook]:
    """The hooks of a composite, with nested composites flattened; for another hook, the hook itself."""
    own = type(hook)
    if not isinstance(hook, CompositeHook):
        return [hook]
    if own.run is not CompositeHook.run or own.should_run is not CompositeHook.should_run:
        return [hook]
    return [part for inner in hook.hooks for part in parts_of(inner)]


class EvaluationHook(PeriodicHook):
    """Evaluates all lessons, which may graduate them, or only the current one, which leaves the curriculum unchanged.

    Runs on worker 0 only. Scores are named `{eval_type}/{lesson}/{score}`. If two hooks of one `eval_type`
    run at the same step, the results of that step have the scores of the first.
    """

    # Its scores decide whether lessons graduate, so a failure must stop the run.
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
    """Micro-evaluation of the current lesson and evaluation of all lessons, at the frequencies in the config."""
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
    """Logs the step, the lesson, and the numbers in the context's metadata."""

    def __init__(self, frequency: int = 100, start_step: int = 0, level: int = logging.INFO) -> None:
        super().__init__(frequency, start_step)
        self.level = level

    def run(self, context: HookContext) -> None:
        numbers = [f"{k}={v:.4g}" for k, v in context.metadata.items() if isinstance(v, (int, float))]
        logger.log(self.level, "step %d, lesson %r: %s", context.step, context.lesson_id, ", ".join(numbers))


class MetricsHook(PeriodicHook):
    """Logs what `metrics_fn(context)` returns to the worker's tracker.

    :param metrics_fn: the default is the numbers in the context's metadata.
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
    """Writes `worker.state_dict()` to `directory/worker-0-step-000100.json`, atomically and durably."""

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
