"""Metrics of a curriculum's lessons.

`curriculum/<lesson>/unlocked` and `/graduated` are 1 at the step where that happened. After each rollout, `/success` is
the moving average of success in training and `/reward` the mean reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline_hookspecs import HookContext, Rollout

__all__ = ["LessonMetrics"]


class LessonMetrics:
    """Makes the metrics, and remembers which lessons are unlocked. A lesson that has a rollout counts as unlocked."""

    def __init__(self) -> None:
        self.unlocked: set[str] = set()

    def after_rollout(self, context: HookContext, rollout: Rollout) -> dict[str, float]:
        lesson = context.lesson_id
        if lesson is None:
            return {}
        numbers = {}
        if lesson not in self.unlocked:
            self.unlocked.add(lesson)
            numbers[f"curriculum/{lesson}/unlocked"] = 1.0
        if "performance" in context.metadata:
            numbers[f"curriculum/{lesson}/success"] = context.metadata["performance"]
        if "mean_reward" in rollout.stats:
            numbers[f"curriculum/{lesson}/reward"] = rollout.stats["mean_reward"]
        return numbers

    def after_update(self, changes: Mapping[str, Any]) -> dict[str, float]:
        self.unlocked.update(lesson for lesson, change in changes.items() if change == "unlocked")
        return {f"curriculum/{lesson}/{change}": 1.0 for lesson, change in changes.items()}
