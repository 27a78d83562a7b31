import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import EventRecorder, check_plugin
from hookline_evaluation import Evaluation, Options
from hookline_hookspecs import Episode, EvaluationRequest, EvaluationResult, ReplayRecord, TrainerState, hookimpl

Run = Callable[..., TrainerState]


class Evaluator:
    """Implements `evaluate_policy`, and records the requests."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[int, EvaluationRequest]] = []

    @hookimpl
    def evaluate_policy(self, state: TrainerState, request: EvaluationRequest) -> Any:
        self.asked.append((state.epoch, request))
        return self.answer


def test_it_is_a_good_plugin() -> None:
    check_plugin(Evaluation, n_examples=8, greedy=False, seed=3, micro_every=2)


@pytest.mark.parametrize(
    ("every", "total_epochs", "evaluated"),
    [
        (None, None, [9, 19, 24]),
        (None, 25, [9, 19, 24]),
        (None, 100, [9, 19, 24]),
        (None, 101, [19, 24]),
        (None, 1000, [24]),
        (8, 1000, [7, 15, 23, 24]),
        (1, 1000, list(range(25))),
    ],
)
def test_it_evaluates_about_ten_times_in_a_run_and_at_its_end_or_as_it_is_told(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Run,
    every: int | None,
    total_epochs: int | None,
    evaluated: list[int],
) -> None:
    evaluation(every=every)
    evaluator = Evaluator({"success": 0.5})
    hookline_manager.register(evaluator)
    state = hookline_state(total_epochs=total_epochs)
    for state.epoch in range(25):
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert [epoch for epoch, _ in evaluator.asked] == evaluated


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
    evaluation(
        lessons=["addition"], n_examples=8, greedy=False, seed=3, samples_per_problem=4, pass_at=[2, 4], replays=1
    )
    evaluator = Evaluator({})
    hookline_manager.register(evaluator)
    hookline_manager.emit.on_training_complete(state=hookline_state())
    expected = EvaluationRequest(
        "full", ["addition"], n_examples=8, greedy=False, seed=3, samples_per_problem=4, pass_at=[2, 4], replays=1
    )
    assert evaluator.asked == [(0, expected)]


def test_evaluations_on_the_workers_say_so_in_their_requests(
    evaluation: Callable[..., Evaluation], hookline_manager: PluginManager, hookline_state: Run
) -> None:
    evaluation(mode="workers", micro_every=1)
    evaluator = Evaluator({})
    hookline_manager.register(evaluator)
    hookline_manager.emit.on_epoch_end(state=hookline_state())
    assert [(request.kind, request.on_workers) for _, request in evaluator.asked] == [("micro", True), ("full", True)]


def test_glances_have_an_interval_of_their_own(
    evaluation: Callable[..., Evaluation], hookline_manager: PluginManager, hookline_state: Run
) -> None:
    evaluation(every=10, micro_every=4, micro_n_examples=3, n_examples=8)
    evaluator = Evaluator({})
    hookline_manager.register(evaluator)
    state = hookline_state()
    for state.epoch in range(13):
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    asked = [(epoch, request.kind, request.n_examples) for epoch, request in evaluator.asked]
    assert sorted(asked) == [(3, "micro", 3), (7, "micro", 3), (9, "full", 8), (11, "micro", 3), (12, "full", 8)]


def test_a_run_that_goes_on_has_passed_no_glance(
    evaluation: Callable[..., Evaluation], hookline_manager: PluginManager, hookline_state: Run
) -> None:
    evaluation(every=20, micro_every=4)
    evaluator = Evaluator({})
    hookline_manager.register(evaluator)
    state = hookline_state()
    hookline_manager.emit.on_new_training_run(state=state)
    hookline_manager.emit.pre_training(state=state, report_data={"start_epoch": 22})
    for state.epoch in range(22, 25):
        hookline_manager.emit.on_epoch_end(state=state)
    assert [epoch for epoch, _ in evaluator.asked] == [23]


@pytest.mark.parametrize(
    ("options", "start_step", "evaluated"),
    [
        ({"every": None, "every_steps": 10}, 0, [10, 20, 24]),
        ({"every": None, "every_steps": 10}, 12, [20, 24]),
        ({"every": 2, "every_steps": 12}, 0, [8, 12, 16, 24]),
    ],
)
def test_it_evaluates_by_steps_in_the_middle_of_an_epoch_and_no_step_twice(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Run,
    tmp_path: Path,
    options: dict[str, Any],
    start_step: int,
    evaluated: list[int],
) -> None:
    evaluation(**options)
    steps = []

    class StepEvaluator:
        @hookimpl
        def evaluate_policy(self, state: TrainerState) -> EvaluationResult:
            steps.append(state.step)
            return EvaluationResult({"success": 0.5}, {"addition": [Episode("2+3=", "5", "5", 1.0)]})

    hookline_manager.register(StepEvaluator())
    state = hookline_state(step=start_step, run_dir=tmp_path)
    hookline_manager.emit.pre_training(state=state, report_data={"start_epoch": start_step // 4})
    for state.epoch in range(start_step // 4, 6):
        for _ in range(4):
            state.step += 1
            hookline_manager.emit.post_training_step(state=state, report_data={})
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    assert steps == evaluated
    replays = [f"epoch-{(step - 1) // 4:06d}-step-{step:06d}.jsonl" for step in evaluated]
    assert sorted(path.name for path in (tmp_path / "replays").glob("*.jsonl")) == replays


def test_an_answer_with_episodes_gives_scores_and_a_replay(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Run,
    tmp_path: Path,
) -> None:
    evaluation()
    episodes = {"addition": [Episode("2+3=", "5", "5", 1.0), Episode("4+4=", "9", "8", 0.0)]}
    hookline_manager.register(Evaluator(EvaluationResult({"eval/addition/success_rate": 0.5}, episodes)))
    state = hookline_state(epoch=10, step=40, run_dir=tmp_path)
    hookline_manager.emit.on_epoch_end(state=state)
    assert state.eval_scores == {"eval/addition/success_rate": 0.5}
    assert state.shared["evaluation"] == {"scores": state.eval_scores, "epoch": 10, "step": 40}
    (told,) = hookline_events.of("on_replay_saved")
    path = tmp_path / "replays" / "epoch-000010.jsonl"
    assert told.arguments["replay"] == ReplayRecord(path=path, lesson_id="addition", episodes=2, step=40)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["epoch"], line["step"], line["response"]) for line in lines] == [(10, 40, "5"), (10, 40, "9")]
    assert "4+4=" in path.with_suffix(".html").read_text()


def test_a_run_without_a_folder_has_scores_and_no_replay(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Run,
) -> None:
    evaluation()
    hookline_manager.register(Evaluator(EvaluationResult({"x": 0.5}, {"addition": [Episode("2+3=", "5")]})))
    state = hookline_state(epoch=10, run_dir=None)
    hookline_manager.emit.on_epoch_end(state=state)
    assert state.eval_scores == {"x": 0.5}
    assert "on_replay_saved" not in hookline_events.names()


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


def test_it_says_once_that_there_is_no_answer_and_tells_no_scores(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hookline.evaluation")
    evaluation()
    hookline_manager.register(Evaluator(None))
    for epoch in (10, 20, 30):
        hookline_manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
    said = [record for record in caplog.records if "no plugin returned scores from evaluate_policy" in record.message]
    assert [record.levelname for record in said] == ["INFO"]
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
    assert "a plugin returned a float from evaluate_policy, not a mapping of names to scores" in caplog.text
    assert state.eval_scores == {}


def test_only_rank_0_evaluates(hookline_state: Run) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Evaluation(Options(), manager.emit))
        evaluator = Evaluator({"success": 0.5})
        manager.register(evaluator)
        manager.emit.on_training_complete(state=hookline_state(rank=1))
    assert evaluator.asked == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_examples": 0}, "n_examples must be at least 1, got 0"),
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"micro_every": 0}, "micro_every must be at least 1, got 0"),
        ({"replays": -1}, "replays must be 0 or more, got -1"),
        ({"samples_per_problem": 4}, "all samples of a problem would be the same. Set greedy = false"),
        ({"pass_at": (2,)}, "pass_at has 2, but samples_per_problem is 1"),
        ({"mode": "remote"}, "mode is 'remote', but url must be a string, got NoneType"),
        (
            {"mode": "remote", "url": "http://u:p@h/"},
            "put a token into the environment variable HOOKLINE_EVALUATION_TOKEN",
        ),
        (
            {"mode": "remote", "url": "file:///etc/passwd"},
            "url must be an http or https URL with a host, got 'file:///etc/passwd'",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Options(**options)


def test_the_trainer_hook_is_not_imported_with_the_plugin() -> None:
    code = (
        "import sys, hookline_evaluation; print([m for m in ('httpcore', 'tenacity', 'hookline') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 10**400, None, "high", [1.0]])
def test_a_score_that_is_no_finite_number_is_reported_and_those_before_it_stay(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Run,
    caplog: pytest.LogCaptureFixture,
    score: Any,
) -> None:
    evaluation(every=1)
    evaluator = Evaluator({"success": 0.5})
    hookline_manager.register(evaluator)
    state = hookline_state(epoch=1)
    hookline_manager.emit.on_epoch_end(state=state)
    evaluator.answer = {"success": 0.75, "odd": score}
    state.epoch = 2
    hookline_manager.emit.on_epoch_end(state=state)
    assert state.eval_scores == {"success": 0.5}
    assert f"'odd' is {repr(score)[:50]}" in caplog.text
    assert "a score must be a finite number" in caplog.text
