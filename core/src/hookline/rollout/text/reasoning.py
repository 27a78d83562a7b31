"""Lessons from reasoning-gym. They need that package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hookline.errors import did_you_mean
from hookline.extras import require
from hookline.rollout.curriculum import Lesson
from hookline.rollout.errors import UnknownEnvironmentError
from hookline.rollout.text.environment import TextProblem
from hookline.rollout.text.problems import TextTask

__all__ = ["DatasetChecker", "reasoning_lesson"]

FULL_SCORE: Final = 0.999
"""A score above this counts as 1, to allow for rounding."""


@dataclass(frozen=True)
class DatasetChecker:
    """Scores responses with the dataset's own function, since many problems have more than one right answer."""

    dataset: Any

    def __call__(self, problem: TextProblem, response: str) -> float:
        return float(self.dataset.score_answer(response.strip(), problem.metadata))


def reasoning_lesson(
    dataset: str, *, size: int = 500, seed: int = 0, max_new_tokens: int = 32, **options: Any
) -> Lesson:
    """A lesson from the problems of one dataset, scored with the dataset's own function.

    Most of these functions score partly correct responses between 0 and 1, such as one that contains the answer. Only
    a full score counts as a success.

    :param options: options of the dataset, such as `max_digits=2`.
    """
    reasoning_gym = require("reasoning_gym", f"lesson {dataset!r}")
    known = reasoning_gym.factory.DATASETS
    if dataset not in known:
        raise UnknownEnvironmentError(f"reasoning-gym has no dataset {dataset!r}{did_you_mean(dataset, known)}")
    made = reasoning_gym.create_dataset(dataset, size=size, seed=seed, **options)
    # The dataset scores with the whole item. Some items have no answer, because several are right.
    problems = [TextProblem(item["question"], item["answer"] or "", item) for item in made]
    task = TextTask(problems, DatasetChecker(made), max_new_tokens=max_new_tokens)
    return Lesson(dataset, task, success_above=FULL_SCORE, category="reasoning")
