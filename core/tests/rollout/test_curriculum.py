"""Lessons are sampled, unlocked and graduated by what is told of their rewards."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.rollout import Curriculum, CurriculumConfig, Lesson
from hookline.rollout.errors import CurriculumError


def curriculum(*lessons: Lesson, **config) -> Curriculum:
    return Curriculum(CurriculumConfig(list(lessons), **config))


def lesson(name: str, **fields) -> Lesson:
    return Lesson(name, plateau_window=4, **fields)


def train(subject: Curriculum, name: str, success: float, times: int = 4) -> None:
    """Rollouts of a hundred episodes with this share of positive rewards."""
    good = round(100 * success)
    for _ in range(times):
        subject.record_training(name, [1.0] * good + [0.0] * (100 - good))


def test_success_is_a_moving_average_of_positive_rewards() -> None:
    subject = curriculum(lesson("a"), smoothing=0.9)
    subject.record_training("a", [1.0, -1.0, 0.0, 0.5])
    assert subject.success_of("a") == 0.5
    subject.record_training("a", [1.0])
    assert subject.success_of("a") == pytest.approx(0.9 * 0.5 + 0.1 * 1.0)


def test_a_lesson_may_say_from_which_reward_on_an_episode_is_a_success() -> None:
    subject = curriculum(lesson("a", success_above=474))
    subject.record_training("a", [474.0, 475.0])
    assert subject.success_of("a") == 0.5


def test_episodes_that_could_not_be_judged_say_nothing() -> None:
    subject = curriculum(lesson("a"))
    subject.record_training("a", [None, 1.0, float("nan")])
    assert subject.success_of("a") == 1.0
    subject.record_training("a", [None, float("nan")])
    subject.record_training("a", [])
    assert len(subject.standings["a"].history) == 1


def test_the_half_learnt_is_sampled_most_and_nothing_below_the_floor() -> None:
    subject = curriculum(lesson("new"), lesson("half"), lesson("nearly"), sampling_floor=0.1, smoothing=0.0)
    train(subject, "half", 0.5, 1)
    train(subject, "nearly", 0.99, 1)
    weights = subject.sampling_weights()
    assert weights["half"] == pytest.approx(1 / 1.2)
    assert weights["new"] == weights["nearly"] == pytest.approx(0.1 / 1.2)


@given(uniform=st.floats(0, 1, exclude_max=True), successes=st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_every_number_below_one_falls_on_a_lesson_by_its_weight(uniform: float, successes: list[float]) -> None:
    subject = curriculum(*(lesson(str(index)) for index in range(len(successes))), smoothing=0.0)
    for index, success in enumerate(successes):
        train(subject, str(index), success, 1)
    weights = subject.sampling_weights()
    assert sum(weights.values()) == pytest.approx(1)
    chosen = subject.sample(uniform)
    below = sum(weight for name, weight in weights.items() if int(name) < int(chosen))
    assert below - 1e-9 <= uniform <= below + weights[chosen] + 1e-9


def test_a_lesson_is_unlocked_when_its_dependency_has_reached_the_threshold_and_levelled_off() -> None:
    subject = curriculum(lesson("easy"), lesson("hard", dependencies={"easy": 0.6}), smoothing=0.5)
    assert set(subject.sampling_weights()) == {"easy"}
    train(subject, "easy", 0.2)
    assert subject.has_levelled_off("easy")
    assert subject.update() == {}  # level, but not there yet
    train(subject, "easy", 0.9, times=3)
    assert subject.success_of("easy") >= 0.6
    assert subject.update() == {}  # there, but still rising
    train(subject, "easy", 0.9, times=12)
    assert subject.update() == {"hard": "unlocked"}
    assert subject.update() == {}
    assert set(subject.sampling_weights()) == {"easy", "hard"}


def test_all_dependencies_must_be_met() -> None:
    subject = curriculum(lesson("a"), lesson("b"), lesson("c", dependencies={"a": 0.5, "b": 0.5}))
    train(subject, "a", 0.8)
    assert subject.update() == {}
    train(subject, "b", 0.8)
    assert subject.update() == {"c": "unlocked"}


def test_a_lesson_graduates_at_its_threshold_only_when_level_and_evaluated() -> None:
    subject = curriculum(lesson("a", stop_threshold=0.9))
    train(subject, "a", 1.0)
    assert subject.update() == {}  # no evaluation yet
    subject.record_evaluation("a", [1.0] * 8 + [0.0] * 2)
    assert subject.update() == {}  # evaluated below the threshold
    subject.record_evaluation("a", [1.0] * 9 + [0.0])
    assert subject.update() == {"a": "graduated"}


def test_a_lesson_that_is_evaluated_well_does_not_graduate_before_its_window_is_full() -> None:
    subject = curriculum(lesson("a"))
    train(subject, "a", 1.0, times=3)
    subject.record_evaluation("a", [1.0])
    assert subject.update() == {}
    train(subject, "a", 1.0, times=1)
    assert subject.update() == {"a": "graduated"}


def test_a_lesson_that_is_locked_does_not_graduate() -> None:
    subject = curriculum(lesson("easy"), lesson("hard", dependencies={"easy": 0.9}))
    train(subject, "hard", 1.0)
    subject.record_evaluation("hard", [1.0])
    assert subject.update() == {}


def test_a_graduated_dependency_is_met_whatever_the_threshold_says() -> None:
    subject = curriculum(lesson("easy", stop_threshold=0.5), lesson("hard", dependencies={"easy": 0.99}))
    train(subject, "easy", 0.6)
    subject.record_evaluation("easy", [1.0, 0.0])
    changes = subject.update()
    assert changes == {"easy": "graduated", "hard": "unlocked"}


def test_the_curriculum_is_complete_when_all_have_graduated() -> None:
    subject = curriculum(lesson("a"))
    assert not subject.is_complete
    train(subject, "a", 1.0)
    subject.record_evaluation("a", [1.0])
    subject.update()
    assert subject.is_complete
    with pytest.raises(CurriculumError, match="all lessons have graduated: the run is complete"):
        subject.sample(0.5)


def test_standings_go_through_json_and_back() -> None:
    one, other = (curriculum(lesson("a"), lesson("b", dependencies={"a": 0.5})) for _ in range(2))
    train(one, "a", 0.7)
    one.record_evaluation("a", [1.0, 0.0])
    one.update()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.standings == one.standings


def test_a_circle_of_dependencies_is_an_error_that_names_it() -> None:
    with pytest.raises(CurriculumError, match="in a cycle: 'a' on 'b', 'b' on 'c', 'c' on 'a'"):
        curriculum(
            lesson("a", dependencies={"b": 0.5}),
            lesson("b", dependencies={"c": 0.5}),
            lesson("c", dependencies={"a": 0.5}),
        )
    with pytest.raises(CurriculumError, match="in a cycle: 'a' on 'a'"):
        curriculum(lesson("a", dependencies={"a": 0.5}))


def test_an_unknown_dependency_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(CurriculumError, match=r"depends on 'esay', which is not a lesson \(did you mean 'easy'\?\)"):
        curriculum(lesson("easy"), lesson("hard", dependencies={"esay": 0.5}))


@pytest.mark.parametrize("method", ["record_training", "record_evaluation"])
def test_rewards_of_an_unknown_lesson_are_an_error(method: str) -> None:
    with pytest.raises(CurriculumError, match=r"there is no lesson 'esay' \(did you mean 'easy'\?\)"):
        getattr(curriculum(lesson("easy")), method)("esay", [1.0])


def test_lessons_must_be_there_and_have_names_of_their_own() -> None:
    with pytest.raises(CurriculumError, match="at least one lesson"):
        curriculum()
    with pytest.raises(CurriculumError, match="two lessons are called 'a'"):
        curriculum(lesson("a"), lesson("a"))
    with pytest.raises(CurriculumError, match="lesson 'a': plateau_window must be at least 2"):
        curriculum(Lesson("a", plateau_window=1))
