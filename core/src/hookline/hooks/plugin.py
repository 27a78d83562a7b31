"""A hook as a plugin: asked at the end of every rollout, with a random key of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from hookline.hooks.hook import Hook
from hookline.hooks.random_keys import key_for
from hookline_hookspecs import HookContext, hookimpl

__all__ = ["RESULTS", "HookPlugin"]

logger = logging.getLogger("hookline.hooks")

RESULTS: Final = "hook_results"
"""Where a step's results are among the context's metadata."""


class HookPlugin:
    """Wraps one hook.

    :param name: the hook's name among those registered; its random key is folded from it.
    :param merge: takes the results of a run.
    """

    def __init__(self, hook: Hook, name: str, merge: Callable[[str, Mapping[str, Any], HookContext], None]) -> None:
        self.hook = hook
        self.critical = getattr(hook, "critical", False)
        self.on_error = getattr(hook, "on_error", None)
        self._name = name
        self._merge = merge

    # Of those that want to be last, pluggy calls the newest last: hooks run in the order of their registration.
    @hookimpl(trylast=True)
    def on_rollout_end(self, context: HookContext) -> None:
        own = replace(context, rng=key_for(context.rng, self._name))
        if not self.hook.should_run(own):
            return
        start = time.perf_counter()
        results = self.hook.run(own) or {}
        milliseconds = 1000 * (time.perf_counter() - start)
        logger.debug(
            "hook %r ran at step %d (lesson %r) in %.1f ms and gave %s",
            self._name,
            context.step,
            context.lesson_id,
            milliseconds,
            ", ".join(results) or "nothing",
        )
        self._merge(self._name, results, context)
