from collections.abc import Callable
from typing import Any

import pytest

from hookline.plugins import PluginManager
from hookline.testing import EventRecorder, check_plugin
from hookline_evaluation import Evaluation, Options
from hookline_hookspecs import EvaluationRequest, TrainerState, hookimpl

Run = Callable[..., TrainerState]


class Evaluator:
    """Carries evaluations out, and remembers what it was asked for."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[int, EvaluationRequest]] = []

    @hookimpl
    def evaluate_policy(self, state: TrainerState, request: EvaluationRequest) -> Any:
        self.asked.append((state.epoch, request))
        return self.answer


@pytest.fixture
def evaluation(hookline_manager: PluginManager) -> Callable[..., Evaluation]:
    """Registers the plugin: `evaluation(n_examples=8)`."""

    def register(**options: Any) -> Evaluation:
        plugin = Evaluation(Options(**options), hookline_manager.emit)
        hookline_manager.register(plugin, "evaluation")
        return plugin

    return register


def test_it_is_a_good_plugin() -> None:
    check_plugin(Evaluation, n_examples=8, greedy=False, seed=3, kind="micro")


def test_it_evaluates_every_ten_epochs_and_at_the_end(
    evaluation: Callable[..., Evaluation], hookline_manager: PluginManager, hookline_state: Run
) -> None:
    evaluation()
    evaluator = Evaluator({"success": 0.5})
    hookline_manager.register(evaluator)
    state = hookline_state()
    for state.epoch in range(25):
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert [epoch for epoch, _ in evaluator.asked] == [10, 20, 24]


def test_an_epoch_that_was_just_evaluated_is_not_evaluated_again_at_the_end(
    evaluation: Callable[..., Evaluation], hookline_manager: PluginManager, hookline_state: Run
) -> None:
    evaluation()
    evaluator = Evaluator({"success": 0.5})
    hookline_manager.register(evaluator)
    state = hookline_state(epoch=10)
    hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert len(evaluator.asked) == 1


def test_the_request_is_what_the_options_say(
    evaluation: Callable[..., Evaluation], hookline_manager: PluginManager, hookline_state: Run
) -> None:
    evaluation(n_examples=8, greedy=False, seed=3, kind="micro")
    evaluator = Evaluator({})
    hookline_manager.register(evaluator)
    hookline_manager.emit.on_training_complete(state=hookline_state())
    assert evaluator.asked == [(0, EvaluationRequest(kind="micro", n_examples=8, greedy=False, seed=3))]


def test_the_scores_are_in_the_state_before_others_are_told(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Run,
) -> None:
    evaluation()
    hookline_manager.register(Evaluator({"addition": 0.5}))
    state = hookline_state(epoch=10, eval_scores={"addition": 0.25, "subtraction": 1.0})
    hookline_manager.emit.on_epoch_end(state=state)
    assert hookline_events.names() == ["on_epoch_end", "on_evaluation_start", "evaluate_policy", "on_evaluation_end"]
    told = hookline_events.of("on_evaluation_end")[0].arguments
    assert told["scores"] == {"addition": 0.5}
    assert told["state"].eval_scores == {"addition": 0.5, "subtraction": 1.0}


def test_it_says_once_that_nobody_answers_and_tells_no_scores(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluation()
    hookline_manager.register(Evaluator(None))
    for epoch in (10, 20, 30):
        hookline_manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
    assert caplog.text.count("no plugin gave scores in evaluate_policy") == 1
    assert "on_evaluation_end" not in hookline_events.names()


def test_an_answer_that_is_no_scores_is_reported(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluation()
    hookline_manager.register(Evaluator(0.5))
    state = hookline_state(epoch=10)
    hookline_manager.emit.on_epoch_end(state=state)
    assert "a plugin returned a float from evaluate_policy, not scores by name" in caplog.text
    assert state.eval_scores == {}


def test_only_rank_0_evaluates(hookline_state: Run) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Evaluation(Options(), manager.emit))
        evaluator = Evaluator({"success": 0.5})
        manager.register(evaluator)
        manager.emit.on_training_complete(state=hookline_state(rank=1))
    assert evaluator.asked == []


def test_an_evaluation_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="n_examples must be at least 1, got 0"):
        Options(n_examples=0)
