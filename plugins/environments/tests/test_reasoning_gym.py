"""Datasets of reasoning-gym, each scored by its own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

reasoning_gym = pytest.importorskip("reasoning_gym", reason='pip install "hookline-environments[reasoning-gym]"')

from hookline_environments.from_reasoning_gym import reasoning_gym_environment  # noqa: E402

SUCCESS = 0.99

WITHOUT_AN_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Datasets whose problems come without an answer: any that fits will do."""


def test_a_dataset_is_scored_by_its_own_function() -> None:
    task = reasoning_gym_environment("countdown", size=2, seed=1, held_out_size=2, min_numbers=2, max_numbers=2)
    for problem in [*task.problems, *task.held_out]:
        assert task.checker(problem, f" {problem.answer} ") == 1.0
        assert task.checker(problem, f"0 + {problem.answer}") < SUCCESS, "it uses a number that was not given"
        item = task.checker.items[problem.metadata["index"]]
        numbers, target = item["metadata"]["numbers"], item["metadata"]["target"]
        other = next(
            text
            for a, b in (numbers, numbers[::-1])
            for text in (f"({a}) + ({b})", f"({a}) - ({b})", f"({a}) * ({b})", f"({a}) / ({b})")
            if eval(text) == target
        )
        assert other != problem.answer
        assert task.checker(problem, other) == 1.0, "another right answer is as good as the one that the dataset knows"
    assert {problem.prompt for problem in task.problems}.isdisjoint(problem.prompt for problem in task.held_out)


def test_a_lesson_names_a_dataset_and_its_options(worker_for: Callable[..., Any]) -> None:
    from hookline.policies import TransformerPolicy
    from hookline.rollout.errors import LessonError, UnknownEnvironmentError
    from hookline.rollout.text import CharacterTokenizer

    policy = TransformerPolicy(CharacterTokenizer().size, width=16, layers=1, heads=2)
    lesson = {"limits": {"max_new_tokens": 4}}
    worker = worker_for("reasoning-gym:basic_arithmetic", lesson, {"policy": policy}, size=5, max_digits=1)
    rollout = worker.rollout()
    assert all(episode.prompt.startswith("Calculate") for episode in rollout.episodes)
    assert all(0 <= episode.reward <= 1 for episode in rollout.episodes)
    assert all(episode.metadata["length"] <= 4 for episode in rollout.episodes)
    with pytest.raises(UnknownEnvironmentError, match=r"no dataset 'basic_arithmetc' \(did you mean 'basic_"):
        worker_for("reasoning-gym:basic_arithmetc")
    with pytest.raises(
        LessonError, match=r"environment 'reasoning-gym:basic_arithmetic': raised TypeError: .*'digits'"
    ):
        worker_for("reasoning-gym:basic_arithmetic", digits=2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one of them leaves a file open
def test_the_right_answer_gets_the_full_score_in_every_dataset() -> None:
    names = set(reasoning_gym.factory.DATASETS) - {"composite"}  # made of others
    assert len(names) > 100
    unanswered = set()
    for name in names:
        task = reasoning_gym_environment(name, size=1, seed=1, held_out_size=0)
        (problem,) = task.problems
        if not problem.answer:
            unanswered.add(name)
            assert task.checker(problem, "nonsense") < SUCCESS, name
        else:
            assert task.checker(problem, problem.answer) == 1.0, name
    assert unanswered == WITHOUT_AN_ANSWER
