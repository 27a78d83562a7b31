"""`LoggingHook`: a line about the worker every so many rollouts."""

from __future__ import annotations

import logging

from hookline.hooks.periodic import PeriodicHook
from hookline_hookspecs import HookContext

__all__ = ["LoggingHook"]

logger = logging.getLogger("hookline.hooks")


class LoggingHook(PeriodicHook):
    """Logs the step, the lesson, and the numbers among the context's metadata."""

    def __init__(self, frequency: int = 100, start_step: int = 0, level: int = logging.INFO) -> None:
        super().__init__(frequency, start_step)
        self.level = level

    def run(self, context: HookContext) -> None:
        numbers = [f"{k}={v:.4g}" for k, v in context.metadata.items() if isinstance(v, (int, float))]
        logger.log(self.level, "step %d, lesson %r: %s", context.step, context.lesson_id, ", ".join(numbers))
