"""`reasoning-gym:NAME`: problems of a dataset of reasoning-gym, scored by the dataset's own function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hookline.errors import did_you_mean
from hookline.importing import require
from hookline.rollout.errors import UnknownEnvironmentError
from hookline.rollout.text import TextProblem, TextTask

__all__ = ["reasoning_gym_environment"]


@dataclass(frozen=True)
class DatasetChecker:
    """Scores responses with the dataset's own function, since many problems have more than one right answer."""

    dataset: Any
    items: list[Any]

    def __call__(self, problem: TextProblem, response: str) -> float:
        assert problem.metadata is not None
        return float(self.dataset.score_answer(response.strip(), self.items[problem.metadata["index"]]))


def reasoning_gym_environment(
    dataset: str, *, size: int = 500, seed: int = 0, held_out_size: int = 100, **options: Any
) -> TextTask:
    """The problems of one dataset.

    Most functions score a partly correct response between 0 and 1, such as one that contains the answer. For a lesson
    in which only a full score is a success, set its `success_above = 0.99`.

    :param size: how many problems are drawn from.
    :param held_out_size: how many further ones are kept for evaluations.
    :param options: of the dataset, such as `max_digits=2`.
    """
    purpose = f"environment 'reasoning-gym:{dataset}'"
    reasoning_gym = require("reasoning_gym", purpose, "reasoning-gym", "hookline-environments")
    known = reasoning_gym.factory.DATASETS
    if dataset not in known:
        raise UnknownEnvironmentError(f"reasoning-gym has no dataset {dataset!r}{did_you_mean(dataset, known)}")
    # Not one for each part: datasets whose seeds are close have items in common.
    made = reasoning_gym.create_dataset(dataset, size=size + held_out_size, seed=seed, **options)
    items = list(made)
    # Some items have no answer, because several are right.
    problems = [TextProblem(item["question"], item["answer"] or "", {"index": i}) for i, item in enumerate(items)]
    return TextTask(problems[:size], DatasetChecker(made, items), max_new_tokens=64, held_out=problems[size:] or None)
