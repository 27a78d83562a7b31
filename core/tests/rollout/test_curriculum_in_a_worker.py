"""A worker moves its curriculum by rollouts and full evaluations, and is done when all lessons have graduated."""

from __future__ import annotations

import pytest

from hookline import hookimpl
from hookline.hooks import EvaluationHook
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.errors import CurriculumError


def easy_lessons() -> CurriculumConfig:
    """Any episode of CartPole is a success: both lessons are learnt as soon as the rules allow."""
    return CurriculumConfig(
        [
            Lesson("first", plateau_window=2),
            Lesson("second", plateau_window=2, dependencies={"first": 0.5}),
        ],
        micro_eval_frequency=None,
        eval_frequency=3,
        eval_n_examples=8,
    )


def test_lessons_are_unlocked_and_graduate_and_then_the_run_is_complete(hookline_manager, hookline_events) -> None:
    worker = RolloutWorker(RolloutWorkerConfig(easy_lessons()), hookline_manager)
    worker.run(steps=1000)
    changes = [dict(event.arguments["changes"]) for event in hookline_events.of("on_curriculum_update")]
    assert changes[0] == {"second": "unlocked"}
    assert {name for change in changes for name, what in change.items() if what == "graduated"} == {"first", "second"}
    assert worker.is_complete
    assert worker.step < 1000
    steps = worker.step
    worker.run(steps=5)
    assert worker.step == steps
    with pytest.raises(CurriculumError, match="the run is complete"):
        worker.rollout()


def test_a_glance_at_the_current_lesson_does_not_move_the_curriculum() -> None:
    config = RolloutWorkerConfig(easy_lessons())
    config.curriculum_config.eval_frequency = None
    config.curriculum_config.micro_eval_frequency = 1
    worker = RolloutWorker(config)
    worker.run(steps=6)
    assert worker.tracker.latest["micro_eval/first/success_rate"] == 1.0
    assert worker.curriculum.standings["first"].evaluated_success is None
    assert not any(standing.graduated for standing in worker.curriculum.standings.values())


def test_a_workers_own_evaluation_decides_once_whether_it_moves_the_curriculum(hookline_manager) -> None:
    class Heeding:
        """Hands every evaluation to the worker, as the trainer's evaluator does."""

        @hookimpl
        def on_evaluation_end(self, scores: dict[str, float]) -> None:
            worker.heed_evaluation(scores)

    worker = RolloutWorker(RolloutWorkerConfig(easy_lessons()), hookline_manager)
    hookline_manager.register(Heeding())
    assert worker.evaluate(n_examples=2)["eval/first/success_rate"] == 1.0
    assert worker.curriculum.standings["first"].evaluated_success is None
    worker.heed_evaluation({"eval/first/success_rate": 0.5})
    assert worker.curriculum.standings["first"].evaluated_success == 0.5, "an evaluation made elsewhere"
    worker.evaluate(n_examples=2, moves_curriculum=True)
    assert worker.curriculum.standings["first"].evaluated_success == 1.0


def test_evaluation_is_for_worker_0_alone() -> None:
    config = RolloutWorkerConfig(easy_lessons(), worker_index=1)
    worker = RolloutWorker(config)
    worker.run(steps=4)
    assert not any("eval" in name for name in worker.tracker.latest)


def test_every_lesson_is_evaluated_on_as_many_examples_as_asked_for() -> None:
    worker = RolloutWorker(RolloutWorkerConfig(easy_lessons()))
    worker.clear_hooks()
    worker.register_hook(EvaluationHook(frequency=2, n_examples=5, eval_type="custom"))
    worker.run(steps=2)
    for lesson in ("first", "second"):
        assert worker.tracker.latest[f"custom/{lesson}/episodes"] == 5
        assert worker.tracker.latest[f"custom/{lesson}/mean_reward"] > 0


def test_an_evaluation_disturbs_no_rollout() -> None:
    with_evaluation, without = RolloutWorkerConfig(easy_lessons()), RolloutWorkerConfig(easy_lessons())
    with_evaluation.curriculum_config.eval_frequency = 1
    without.curriculum_config.eval_frequency = None
    one, other = RolloutWorker(with_evaluation), RolloutWorker(without)
    first, second = one.rollout(), other.rollout()
    assert (first.arrays["obs"] == second.arrays["obs"]).all()


def test_an_evaluation_of_an_unknown_lesson_names_the_nearest() -> None:
    worker = RolloutWorker(RolloutWorkerConfig(easy_lessons()))
    with pytest.raises(CurriculumError, match=r"there is no lesson 'frist' \(did you mean 'first'\?\)"):
        worker.evaluate(["frist"])


def test_an_evaluation_is_announced_with_its_scores(hookline_manager, hookline_events) -> None:
    worker = RolloutWorker(RolloutWorkerConfig(easy_lessons()), hookline_manager)
    scores = worker.evaluate(n_examples=8, moves_curriculum=True)
    (start,) = hookline_events.of("on_evaluation_start")
    (end,) = hookline_events.of("on_evaluation_end")
    assert start.arguments["request"].kind == "full"
    assert start.arguments["request"].lessons == ("first", "second")
    assert end.arguments["scores"] == scores
    assert worker.run_state.eval_scores == scores


def test_none_in_the_config_means_no_evaluation() -> None:
    config = easy_lessons()
    config.eval_frequency = None
    assert RolloutWorker(RolloutWorkerConfig(config)).get_hooks() == []
