"""What evaluations say of lessons and categories."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from hookline.rollout import Lesson
from hookline.rollout.scores import LessonScores, pass_at_k, score_evaluation, success_rates
from hookline_hookspecs import Episode, EvaluationRequest


def samples(*problems: list[float | None]) -> list[Episode]:
    """Episodes of a text lesson: the rewards of each problem's samples."""
    return [
        Episode("?", "!", reward=reward, group=group) for group, rewards in enumerate(problems) for reward in rewards
    ]


def episodes(*rewards: float) -> list[Episode]:
    """Episodes of a control lesson."""
    return [Episode(reward=reward) for reward in rewards]


def scores_of(
    request: EvaluationRequest, lessons: dict[str, Lesson], played: dict[str, list[Episode]], kind: str | None = None
) -> dict[str, float]:
    evaluated = {name: LessonScores(own, lessons[name].success_above, request.pass_at) for name, own in played.items()}
    return score_evaluation(request, lessons, evaluated, kind)


@pytest.mark.parametrize("total", range(1, 7))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_have_a_success(total: int) -> None:
    for successes in range(total + 1):
        outcomes = [True] * successes + [False] * (total - successes)
        for k in range(1, total + 1):
            choices = [any(choice) for choice in itertools.combinations(outcomes, k)]
            assert pass_at_k(total, successes, k) == pytest.approx(sum(choices) / len(choices))


def test_pass_at_k_is_exact_for_many_samples() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    assert pass_at_k(10_000, 0, 5_000) == 0.0


def test_the_scores_of_a_text_lesson() -> None:
    request = EvaluationRequest(greedy=False, samples_per_problem=4, pass_at=(2, 4))
    played = {"sums": samples([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, None], [0.0, 0.0, 0.0, 0.0])}
    scores = scores_of(request, {"sums": Lesson("sums")}, played)
    means = [0.25, 2 / 3, 0.0]
    assert {name.removeprefix("eval/sums/"): value for name, value in scores.items() if "sums" in name} == {
        "episodes": 12.0,
        "not_applicable": 1.0,
        "mean_reward": pytest.approx(statistics.mean(means)),
        "standard_error": pytest.approx(statistics.stdev(means) / math.sqrt(3)),
        "success_rate": pytest.approx(3 / 11),
        "pass@1": pytest.approx(statistics.mean(means)),
        # The second problem has three samples that could be judged, too few for k = 4.
        "pass@2": pytest.approx(statistics.mean([0.5, 1.0, 0.0])),
        "pass@4": pytest.approx(statistics.mean([1.0, 0.0])),
    }
    assert scores["eval/mean_reward"] == scores["eval/sums/mean_reward"]


def test_a_control_lesson_has_no_pass_at_k() -> None:
    scores = scores_of(EvaluationRequest(), {"pole": Lesson("pole", success_above=15.0)}, {"pole": episodes(10, 20)})
    assert scores == {
        f"{group}/{name}": value
        for group in ("eval/pole", "eval")
        for name, value in {
            "episodes": 2.0, "not_applicable": 0.0, "mean_reward": 15.0, "standard_error": 5.0, "success_rate": 0.5
        }.items()
    }  # fmt: skip


def test_lessons_of_a_category_are_counted_together_and_no_name_is_guessed() -> None:
    lessons = {
        "sum-1": Lesson("sum-1", category="sums"),
        "sum-2": Lesson("sum-2", category="sums"),
        "sum-3": Lesson("sum-3"),
    }
    played = {"sum-1": samples([1.0], [1.0]), "sum-2": samples([0.0], [1.0]), "sum-3": samples([0.0], [0.0])}
    scores = scores_of(EvaluationRequest(), lessons, played)
    categories = {name.split("/")[1] for name in scores if name.startswith("eval_category/")}
    assert categories == {"sums"}
    assert scores["eval_category/sums/success_rate"] == 0.75
    assert scores["eval_category/sums/episodes"] == 4.0
    assert scores["eval/success_rate"] == 0.5


def test_a_glance_has_names_of_its_own_and_no_categories() -> None:
    scores = scores_of(
        EvaluationRequest(kind="micro"), {"sums": Lesson("sums", category="maths")}, {"sums": samples([1.0])}
    )
    assert set(scores) == {
        f"micro_eval/sums/{name}" for name in ("episodes", "not_applicable", "mean_reward", "success_rate", "pass@1")
    }
    assert success_rates(scores, ["sums"]) == {}


def test_where_nothing_could_be_judged_there_is_no_rate() -> None:
    scores = scores_of(EvaluationRequest(), {"sums": Lesson("sums")}, {"sums": samples([None], [None])})
    assert scores == {
        "eval/sums/episodes": 2.0, "eval/sums/not_applicable": 2.0, "eval/episodes": 2.0, "eval/not_applicable": 2.0
    }  # fmt: skip


def test_an_evaluation_of_a_kind_of_its_own_has_the_same_scores_under_its_own_name() -> None:
    lessons, played = {"sums": Lesson("sums", category="maths")}, {"sums": samples([1.0], [0.0])}
    full, own = (scores_of(EvaluationRequest(), lessons, played, kind) for kind in (None, "final"))
    assert {name.replace("final", "eval", 1): value for name, value in own.items()} == full
    assert {"final/sums/mean_reward", "final_category/maths/mean_reward", "final/mean_reward"} <= set(own)


def test_scores_that_come_without_episodes_stand_as_they_are() -> None:
    assert score_evaluation(EvaluationRequest(), {"sums": Lesson("sums")}, {"sums": {"mocked": 1.0}}) == {
        "eval/sums/mocked": 1.0
    }


def test_the_success_of_lessons_is_read_from_evaluations_of_one_kind() -> None:
    scores = {"eval/a/success_rate": 0.5, "eval/success_rate": 0.1, "micro_eval/b/success_rate": 1.0}
    assert success_rates(scores, ["a", "b"]) == {"a": 0.5}
    assert success_rates(scores, ["a", "b"], "micro_eval") == {"b": 1.0}
