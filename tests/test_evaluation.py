"""Evaluations in real runs: what they leave alone, and what they give."""

from __future__ import annotations

import inspect
import json
import logging
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hookline
import hookline_checkpoint
from hookline import PluginManager, hookimpl
from hookline.errors import HooklineError
from hookline.plugin_manager.settings import read_settings
from hookline.policies import Discrete, MLPPolicy, TransformerPolicy
from hookline.rewards import IntegratedRewardConfig
from hookline.rollout import Curriculum, CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.text import ArithmeticProblems, CharacterTokenizer, TextProblem, TextTask, arithmetic_lessons
from hookline.testing import EventRecorder
from hookline.training import RolloutConfig, SupervisedConfig, Trainer, TrainerConfig, TrainerHook
from hookline.training.policy_evaluator import PolicyEvaluator
from hookline_evaluation import Evaluation, EvaluationConfig, EvaluationHook, Options
from hookline_hookspecs import EpisodeBatch, EvaluationRequest, TrainerState, VerificationReport, VerificationResult

SIZES = RolloutConfig(num_environments=4, steps_per_rollout=8, minibatches=2, update_epochs=1)
SMALL = MLPPolicy(4, Discrete(2), hidden=(8,))
NO_OWN_EVALUATION = {"micro_eval_frequency": None, "eval_frequency": None}


def control(plugins: PluginManager, *, epochs: int = 3, lessons: list[Lesson] | None = None, **fields: Any) -> Trainer:
    config = CurriculumConfig(lessons or [Lesson("pole", category="balance")], **NO_OWN_EVALUATION)
    return Trainer(TrainerConfig(epochs=epochs, rollout=SIZES, **fields), config, SMALL, plugins=plugins)


def text(plugins: PluginManager, *, epochs: int = 3, seed: int = 0, **parts: Any) -> Trainer:
    tokenizer = CharacterTokenizer("0123456789+=")
    policy = TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=16)
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(arithmetic_lessons("addition-1", max_new_tokens=4), **NO_OWN_EVALUATION),
            policy,
            num_environments=4,
            sampling=SamplingConfig(samples_per_prompt=2),
            tokenizer=tokenizer,
            seed=seed,
        ),
        plugins,
    )
    sizes = RolloutConfig(minibatches=2, update_epochs=1)
    return Trainer(TrainerConfig(epochs=epochs, rollout=sizes), policy=policy, plugins=plugins, worker=worker, **parts)


def add_evaluation(plugins: PluginManager, **options: Any) -> None:
    plugins.register(Evaluation(Options(**options), plugins.emit), "evaluation")


@pytest.mark.parametrize("make", [control, text])
def test_a_run_with_evaluation_ends_with_the_weights_of_one_without(make: Any, tmp_path: Path) -> None:
    weights = []
    for evaluated in (False, True):
        with PluginManager() as plugins:
            trainer = make(plugins, epochs=2)
            trainer.state.run_dir = tmp_path if evaluated else None
            if evaluated:
                sizes = {"n_examples": 4, "micro_n_examples": 4, "replays": 1}
                add_evaluation(plugins, every_steps=1, micro_every=1, greedy=False, **sizes)
            trainer.train()
            weights.append(trainer.policy.state_dict())
            assert bool(trainer.state.eval_scores) == evaluated
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
    assert len(list((tmp_path / "replays").glob("*.jsonl"))) == trainer.state.step


def careless_checker(problem: TextProblem, response: str) -> float:
    """Draws from the global generators."""
    return float(random.random() + np.random.random() + float(torch.rand(())))


def test_an_evaluation_leaves_the_global_generators_alone_and_draws_from_its_seed(hookline_manager: Any) -> None:
    tokenizer = CharacterTokenizer("0123456789+=")
    policy = TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=16)
    lessons = [Lesson("careless", TextTask(ArithmeticProblems(1), careless_checker, max_new_tokens=4))]
    worker = RolloutWorker(
        RolloutWorkerConfig(CurriculumConfig(lessons), policy, num_environments=4, tokenizer=tokenizer),
        hookline_manager,
    )
    evaluator = PolicyEvaluator(Trainer(policy=policy, plugins=hookline_manager, worker=worker))

    def rewards(seed: int) -> list[float | None]:
        # One episode, since those of several may be checked in several threads, which draw in any order.
        result = evaluator.evaluate_policy(EvaluationRequest(n_examples=1, seed=seed, replays=1))
        assert result is not None
        return [episode.reward for episode in result.episodes["careless"]]

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = rewards(0)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    random.random()
    assert rewards(0) == first
    assert rewards(1) != first


def test_the_problems_come_from_the_evaluations_seed_and_not_from_the_runs() -> None:
    prompts = []
    for seed in (0, 1):
        trainer = text(PluginManager(), seed=seed)
        result = PolicyEvaluator(trainer).evaluate_policy(EvaluationRequest(n_examples=8, seed=5, replays=8))
        prompts.append([episode.prompt for episode in result.episodes["addition-1"]])
        trained_on = [episode.prompt for episode in trainer.worker.rollout().episodes]
        assert prompts[-1] != trained_on
    assert prompts[0] == prompts[1]


def test_samples_give_pass_at_k(hookline_manager: PluginManager) -> None:
    evaluator = PolicyEvaluator(text(hookline_manager))
    request = EvaluationRequest(n_examples=4, greedy=False, samples_per_problem=4, pass_at=(4,))
    result = evaluator.evaluate_policy(request)
    assert result.scores["eval/addition-1/episodes"] == 16
    for group in ("eval/addition-1", "eval_category/arithmetic", "eval"):
        assert 0 <= result.scores[f"{group}/pass@1"] <= result.scores[f"{group}/pass@4"] <= 1


def test_a_request_that_makes_no_sense_is_refused(hookline_manager: PluginManager) -> None:
    evaluator = PolicyEvaluator(control(hookline_manager))
    with pytest.raises(HooklineError, match="would draw the same sample each time: use greedy=False"):
        evaluator.evaluate_policy(EvaluationRequest(samples_per_problem=4))
    with pytest.raises(HooklineError, match=r"pass@4 cannot be computed from 2 sample\(s\)"):
        evaluator.evaluate_policy(EvaluationRequest(greedy=False, samples_per_problem=2, pass_at=(4,)))
    with pytest.raises(HooklineError, match=r"there is no lesson 'pol' \(did you mean 'pole'\?\)"):
        evaluator.evaluate_policy(EvaluationRequest(lessons=("pol",)))


def test_a_glance_is_taken_at_the_lesson_that_was_played_last(hookline_manager: PluginManager) -> None:
    trainer = control(hookline_manager, lessons=[Lesson("one"), Lesson("two"), Lesson("three")])
    evaluator = PolicyEvaluator(trainer)
    played = trainer.worker.rollout().lesson_id
    result = evaluator.evaluate_policy(EvaluationRequest(kind="micro", n_examples=2))
    assert {name.split("/")[1] for name in result.scores} == {played}


def test_a_plugin_of_ones_own_answers_before_the_trainer(hookline_manager: PluginManager) -> None:
    class Own:
        @hookimpl
        def evaluate_policy(self, state: TrainerState) -> dict[str, float]:
            return {"maze": 1.0}

    add_evaluation(hookline_manager)
    hookline_manager.register(Own())
    state = control(hookline_manager, epochs=1).train()
    assert state.eval_scores == {"maze": 1.0}


def test_full_evaluations_move_the_curriculum_by_events(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    """Lessons that are easy enough graduate on the scores of the evaluation plugin, and the run is complete."""
    easy = Lesson("easy", success_above=0.5, plateau_window=2, plateau_tolerance=1.0)
    add_evaluation(hookline_manager, n_examples=2)
    trainer = control(hookline_manager, epochs=20, lessons=[easy])
    state = trainer.train()
    assert trainer.worker.curriculum.standings["easy"].evaluated_success == 1.0
    assert trainer.worker.is_complete
    assert state.epoch < 19
    assert "on_curriculum_update" in hookline_events.names()


def test_a_curriculum_may_ignore_the_evaluations_of_plugins(hookline_manager: PluginManager) -> None:
    easy = Lesson("easy", success_above=0.5, plateau_window=2, plateau_tolerance=1.0)
    add_evaluation(hookline_manager, n_examples=2)
    trainer = control(hookline_manager, epochs=1, lessons=[easy])
    trainer.worker.curriculum.config.heeds_evaluations = False
    trainer.train()
    assert trainer.worker.curriculum.standings["easy"].evaluated_success is None


def test_a_supervised_run_is_told_once_that_nothing_evaluates_it(
    hookline_manager: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline.evaluation")
    add_evaluation(hookline_manager)
    policy = TransformerPolicy(vocabulary=10, width=16, layers=1, heads=2, context=8)
    examples = [{"tokens": [2, 3, 4]}] * 4
    config = TrainerConfig(epochs=12, supervised=SupervisedConfig(batch_size=4))
    state = Trainer(config, policy=policy, dataset=examples, plugins=hookline_manager).train()
    said = [record for record in caplog.records if record.name == "hookline.evaluation"]
    (record,) = said
    assert record.levelname == "INFO"
    assert "since no plugin returned scores from evaluate_policy" in record.message
    assert state.eval_scores == {}


def test_what_is_kept_of_verified_lessons_has_the_verdicts(hookline_manager: PluginManager) -> None:
    class Strict:
        @hookimpl
        def verify_episodes(self, batch: EpisodeBatch) -> dict[str, list[VerificationReport]]:
            return {"strict": [VerificationReport(VerificationResult.FAIL, 0.0, message="no") for _ in batch]}

    hookline_manager.register(Strict())
    trainer = text(hookline_manager, rewards=IntegratedRewardConfig())
    before = trainer.worker.rewards.state_dict()
    result = PolicyEvaluator(trainer).evaluate_policy(EvaluationRequest(n_examples=4, replays=2))
    verdicts = [episode.metadata["verification_message"] for episode in result.episodes["addition-1"]]
    assert verdicts == ["strict: no", "strict: no"]
    assert trainer.worker.rewards.state_dict() == before


def test_scores_reach_the_database_and_the_checkpoints(tmp_path: Path) -> None:
    lessons = CurriculumConfig([Lesson("pole")], **NO_OWN_EVALUATION)
    config = TrainerConfig(epochs=1, rollout=SIZES, run_dir=tmp_path / "run")
    settings = read_settings(option_arguments=["evaluation.n_examples=2", "evaluation.replays=0"])
    scores = hookline.train(config, lessons, SMALL, settings=settings).state.eval_scores
    with closing(sqlite3.connect(tmp_path / "run" / "stats.sqlite")) as database:
        recorded = dict(database.execute("SELECT name, value FROM metrics WHERE name LIKE 'eval/%'"))
    saved = json.loads((tmp_path / "run" / "checkpoints" / "epoch-000000" / "state.json").read_text())["metrics"]
    assert recorded == saved == scores
    assert "eval/pole/success_rate" in scores
    assert not (tmp_path / "run" / "replays").exists()


# -- the trainer hook document -----------------------------------------------------------------------------------------


def test_the_documents_example_adds_an_evaluation_hook() -> None:
    class Config(TrainerConfig):
        evaluation: EvaluationConfig | None = EvaluationConfig(every=2, n_examples=4)

    config = Config(epochs=3, rollout=SIZES)
    lessons = CurriculumConfig([Lesson("one", category="poles"), Lesson("two", category="poles")], **NO_OWN_EVALUATION)

    curriculum = Curriculum(lessons)
    policy = SMALL
    trainer = Trainer(config, curriculum, policy)

    if config.evaluation:
        eval_hook = EvaluationHook(config.evaluation, curriculum)
        trainer.add_hook(eval_hook)

    assert eval_hook.get_eval_scores().epoch is None
    trainer.train()

    scores = eval_hook.get_eval_scores()
    assert scores.epoch == 2
    assert set(scores.lesson_scores) == {"one", "two"}
    assert set(scores.category_scores) == {"poles"}
    assert scores.avg_lesson_score == pytest.approx(sum(scores.lesson_scores.values()) / 2)
    assert scores.avg_category_score == pytest.approx(scores.category_scores["poles"])
    assert trainer.state.eval_scores["eval/one/mean_reward"] == scores.lesson_scores["one"]


def test_the_evaluation_hook_has_the_documents_base_and_signature_and_can_be_overridden() -> None:
    expected = ["self", "checkpoint_hook", "trainer_state", "stats_client", "wandb_run"]
    assert list(inspect.signature(EvaluationHook.on_epoch_end).parameters) == expected
    assert issubclass(EvaluationHook, TrainerHook)
    calls: list[Any] = []

    class My(EvaluationHook):
        def on_epoch_end(self, checkpoint_hook, trainer_state, stats_client, wandb_run):  # type: ignore[no-untyped-def]
            if trainer_state.epoch == 1:
                super().on_epoch_end(checkpoint_hook, trainer_state, stats_client, wandb_run)

    class Reader(TrainerHook):
        def on_epoch_end(self, evaluation_hook: Any, eval_scores: Any) -> None:
            calls.append((evaluation_hook, eval_scores.epoch))

    with PluginManager() as plugins:
        trainer = control(plugins, epochs=3)
        hook = My(EvaluationConfig(every=1, n_examples=2, replays=0), trainer.worker.curriculum)
        trainer.add_hook(hook)
        trainer.add_hook(Reader())
        trainer.train()
    assert calls == [(hook, None), (hook, 1), (hook, 1)]
    assert hook.get_eval_scores().epoch == 2  # the end of the run


def test_the_evaluation_hook_goes_by_steps_too(hookline_events: EventRecorder, hookline_manager: PluginManager) -> None:
    trainer = control(hookline_manager, epochs=2)
    config = EvaluationConfig(every_steps=3, n_examples=2, replays=0)
    trainer.add_hook(EvaluationHook(config, trainer.worker.curriculum))
    steps = trainer.train().step
    evaluated = [event.arguments["state"].step for event in hookline_events.of("on_evaluation_end")]
    assert evaluated == sorted({*range(3, steps + 1, 3), steps})


def test_what_is_put_in_the_place_of_evaluate_lesson_is_what_the_plugin_publishes() -> None:
    with PluginManager() as plugins:
        trainer = control(plugins, epochs=1)
        trainer.worker._evaluate_lesson = lambda *_: {"mocked": 1.0}
        trainer.add_hook(EvaluationHook(EvaluationConfig(every=1, n_examples=2), trainer.worker.curriculum))
        scores = trainer.train().eval_scores
        assert not plugins.faults
    assert [name for name in scores if name.endswith("/mocked")]
    assert not [name for name in scores if name.endswith("mean_reward")]


def test_an_evaluation_hook_without_a_config_never_evaluates() -> None:
    with PluginManager() as plugins:
        trainer = control(plugins, epochs=1)
        eval_hook = EvaluationHook(None, trainer.worker.curriculum)
        trainer.add_hook(eval_hook)
        assert trainer.train().eval_scores == {}
    assert eval_hook.get_eval_scores().lesson_scores == {}
    assert eval_hook.get_eval_scores().avg_lesson_score is None


def test_an_epoch_that_is_evaluated_by_default_is_one_that_is_saved() -> None:
    for total in (None, *range(1, 5000, 7)):
        assert Options().full_interval(total) % hookline_checkpoint.Options().interval(total) == 0, total
