"""`CompositeHook`: several hooks as one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hookline.hooks.hook import Hook
from hookline.hooks.random_keys import key_for
from hookline_hookspecs import HookContext

__all__ = ["CompositeHook"]

logger = logging.getLogger("hookline.hooks")


class CompositeHook(Hook):
    """Runs those of its hooks that should run, each with a random key of its own."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks = list(hooks)
        self.critical = any(getattr(hook, "critical", False) for hook in self.hooks)

    def should_run(self, context: HookContext) -> bool:
        # All are asked: a periodic hook that is not asked at a step takes it for one that was passed over.
        answers = [hook.should_run(own) for hook, own in self._with_contexts(context)]
        return any(answers)

    def run(self, context: HookContext) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        errors: list[Exception] = []
        for hook, own in self._with_contexts(context):
            try:
                results = (hook.run(own) or {}) if hook.should_run(own) else {}
            except Exception as error:  # raised below, once all others have run
                errors.append(error)
                continue
            for name in results.keys() & merged.keys():
                logger.warning(
                    "hook %r: %r was returned at step %d by another hook already; that one's is kept",
                    type(hook).__name__,
                    name,
                    context.step,
                )
            merged = {**results, **merged}
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
