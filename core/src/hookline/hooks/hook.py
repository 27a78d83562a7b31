"""`Hook`: what is asked after every rollout of a worker; on its own, periodically, or several as one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from hookline.hooks.random_keys import key_for
from hookline_hookspecs import Every, HookContext

__all__ = ["CompositeHook", "Hook", "OwnContext", "PeriodicHook", "is_hook", "parts_of"]

logger = logging.getLogger("hookline.hooks")

Results = dict[str, Any] | None


class Hook(ABC):
    """Asked after every rollout.

    It is a plugin underneath. `critical`, `on_error`, `after`, `before` and `requires` on its class say what they say
    on a plugin, and so does `@hookimpl(every=2)`, `schedule=`, `tryfirst=` or `background=` on `run`; with a schedule
    the hook is asked only when that is due. Other methods may be marked as implementations of other events.

    An `async def run` is awaited off the training thread, where `should_run` is then asked too. Its results join those
    of its step when they are there.
    """

    @abstractmethod
    def should_run(self, context: HookContext) -> bool:
        """Determine if this hook should run at the current step."""

    @abstractmethod
    def run(self, context: HookContext) -> Results | Awaitable[Results]:
        """Execute the hook; what it returns is merged by name with what other hooks return."""


def is_hook(value: object) -> bool:
    """Whether a value can be asked as a hook is, whatever its class."""
    methods = (getattr(value, "should_run", None), getattr(value, "run", None))
    return not isinstance(value, type) and all(map(callable, methods))


@dataclass
class OwnContext(HookContext):
    """The context as one hook is given it, with a random key of its own."""

    previous_step: int | None = None
    """The step at which the hook was registered and could have been asked before; None for none."""


class PeriodicHook(Hook):
    """Runs when `step > start_step and step % frequency == 0`, and once when the clock jumped over such steps.

    It keeps nothing in mind: which steps the clock jumped over is in the context. So a hook whose `should_run` was not
    reached for a while, since a subclass had it disabled, goes on at the next multiple.
    """

    def __init__(self, frequency: int, start_step: int = 0) -> None:
        Every(frequency)  # an error now rather than at the first step
        self.frequency = frequency
        self.start_step = start_step

    def should_run(self, context: HookContext) -> bool:
        previous = getattr(context, "previous_step", None)
        # The first step, or one after a clock that went back, stands for itself alone.
        last = context.step - 1 if previous is None or previous >= context.step else previous
        due = Every(self.frequency, start=self.start_step).next_after(last)
        return due is not None and due <= context.step


class CompositeHook(Hook):
    """Several hooks, registered and removed as one.

    Each is a plugin of its own: it fails, is quarantined and is critical on its own. A subclass with a `should_run` or
    `run` of its own is one hook, and one plugin.
    """

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks = list(hooks)

    @property
    def critical(self) -> bool:
        """Where it is one plugin: what a critical hook raises stops the run."""
        return any(getattr(hook, "critical", False) for hook in self.hooks)

    def should_run(self, context: HookContext) -> bool:
        return any(hook.should_run(own) for hook, own in self._with_contexts(context))

    def run(self, context: HookContext) -> Results:
        """Run by hand those that should run. All have run when what one of them raised goes up."""
        merged: dict[str, Any] = {}
        errors: list[Exception] = []
        for hook, own in self._with_contexts(context):
            try:
                results = hook.run(own) if hook.should_run(own) else None
            except Exception as error:
                errors.append(error)
                continue
            if isinstance(results, Awaitable):
                raise TypeError(f"{type(hook).__name__}.run is async: register the composite, and it is awaited")
            for name in (results or {}).keys() & merged.keys():
                logger.warning(
                    "hook %r: %r was returned at step %d by another hook already; that one's is kept",
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
    """The hooks that are asked in place of this one: those of a composite, and of composites within it."""
    own = type(hook)
    if not isinstance(hook, CompositeHook):
        return [hook]
    if own.run is not CompositeHook.run or own.should_run is not CompositeHook.should_run:
        return [hook]
    return [part for inner in hook.hooks for part in parts_of(inner)]
