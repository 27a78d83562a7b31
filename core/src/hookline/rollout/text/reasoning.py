"""Lessons from reasoning-gym, when that package is installed."""

from __future__ import annotations

from typing import Any

from hookline.extras import require
from hookline.plugins.errors import did_you_mean
from hookline.rollout.errors import UnknownEnvironmentError
from hookline.rollout.lessons import Lesson
from hookline.rollout.text.task import TextProblem, TextTask

__all__ = ["reasoning_lesson"]


def reasoning_lesson(
    dataset: str, *, size: int = 500, seed: int = 0, max_new_tokens: int = 32, **options: Any
) -> Lesson:
    """A lesson of the problems of one dataset.

    Scored by exact match: reasoning-gym's own default pays in part for a response that merely contains the answer.

    :param options: the dataset's own, such as `max_digits=2`.
    """
    reasoning_gym = require("reasoning_gym", f"lesson {dataset!r}")
    known = reasoning_gym.factory.DATASETS
    if dataset not in known:
        raise UnknownEnvironmentError(f"reasoning-gym has no dataset {dataset!r}{did_you_mean(dataset, known)}")
    problems = [
        TextProblem(item["question"], item["answer"])
        for item in reasoning_gym.create_dataset(dataset, size=size, seed=seed, **options)
    ]
    return Lesson(dataset, TextTask(problems, max_new_tokens=max_new_tokens), category="reasoning")
