"""Supervised learning before reinforcement learning: it ends by what the policy can do, and a run can be taken up in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import torch

from hookline import PluginManager, hookimpl
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.text import CharacterTokenizer, TextProblem, arithmetic_lessons
from hookline.testing import EventRecorder
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig
from hookline.training.errors import TrainingError
from hookline.training.text_examples import demonstrations
from hookline.training.warm_start import WarmStart
from hookline_hookspecs import EvaluationRequest

TOKENIZER = CharacterTokenizer("0123456789+=")
LESSONS = arithmetic_lessons("addition-1", max_new_tokens=3)
EXAMPLES = demonstrations([TextProblem(f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10)], TOKENIZER)


def build(
    plugins: PluginManager, epochs: int = 8, losses: Any = None, lessons: Any = LESSONS, **warm_start: Any
) -> Trainer:
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None),
            policy=TransformerPolicy(TOKENIZER.size, width=32, layers=1, heads=2, context=8),
            num_environments=4,
            sampling=SamplingConfig(samples_per_prompt=4),
            tokenizer=TOKENIZER,
        ),
        plugins,
    )
    config = TrainerConfig(
        epochs,
        losses=losses,
        optimizer=OptimizerConfig("adam", schedule="constant"),
        rollout=RolloutConfig(minibatches=2, update_epochs=1),
    )
    usual = WarmStart(EXAMPLES, until={"addition-1": 0.2}, steps_per_epoch=4, batch_size=25, learning_rate=5e-3)
    return Trainer(config, plugins=plugins, worker=worker, warm_start=replace(usual, **warm_start))


class Judgements:
    """The share solved after each epoch of the warm start, and which problems were tried."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.held_out: set[bool] = set()

    @hookimpl
    def on_evaluation_start(self, request: EvaluationRequest) -> None:
        self.held_out.add(request.held_out)

    @hookimpl
    def on_evaluation_end(self, scores: Mapping[str, float]) -> None:
        self.shares.append(scores["warm_start/addition-1/success_rate"])


def test_the_policy_is_shown_examples_until_it_solves_enough_and_plays_then(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    judged = Judgements()
    hookline_manager.register(judged)
    trainer = build(hookline_manager, epochs=24)
    assert trainer.state.total_steps is None
    trainer.train()
    assert 1 <= len(judged.shares) < 24
    assert all(share < 0.2 for share in judged.shares[:-1])
    assert judged.shares[-1] >= 0.2
    # Four steps of examples each, then two of played experience each.
    assert trainer.state.step == 4 * len(judged.shares) + 2 * (24 - len(judged.shares))
    assert len(hookline_events.of("on_rollout_end")) == 24 - len(judged.shares)


def test_a_warm_start_that_is_slow_gets_more_examples(
    hookline_manager: PluginManager, hookline_events: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    judged = Judgements()
    hookline_manager.register(judged)
    slow = {"steps_per_epoch": 1, "learning_rate": 4e-4, "patience": 150}
    build(hookline_manager, epochs=200, until={"addition-1": 0.1}, **slow).train()
    assert len(judged.shares) > 50
    assert judged.shares[-1] >= 0.1
    assert len(hookline_events.of("on_rollout_end")) == 200 - len(judged.shares)
    assert "warm start" not in caplog.text


def test_a_warm_start_without_progress_ends_with_a_warning_and_the_policy_plays(
    hookline_manager: PluginManager, hookline_events: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    judged = Judgements()
    hookline_manager.register(judged)
    build(hookline_manager, epochs=6, learning_rate=1e-12, patience=3).train()
    assert len(judged.shares) in (3, 4)  # the untrained policy may solve a problem by chance, which is progress once
    assert len(hookline_events.of("on_rollout_end")) == 6 - len(judged.shares)
    assert re.search(
        r"the warm start ends early: the policy solves \d+% of addition-1 \(of 20%\), with no progress in 3 epochs",
        caplog.text,
    )


def test_a_warm_start_is_judged_by_problems_of_training(hookline_manager: PluginManager) -> None:
    judged = Judgements()
    hookline_manager.register(judged)
    drawn: set[str] = set()

    def noted(part: str, problems: Any) -> Any:
        def draw(generator: Any) -> Any:
            drawn.add(part)
            return problems(generator)

        return draw

    (lesson,) = LESSONS
    task = lesson.environment
    watched = replace(task, problems=noted("training", task.problems), held_out=noted("held out", task.held_out))
    build(hookline_manager, epochs=2, lessons=[replace(lesson, environment=watched)]).train()
    assert judged.held_out == {False}
    assert drawn == {"training"}


def test_a_policy_cannot_be_kept_near_where_a_warm_start_leads_away_from(hookline_manager: PluginManager) -> None:
    with pytest.raises(
        TrainingError, match=r"loss 'grpo' penalizes the distance from .* make the warm start a separate run"
    ):
        build(hookline_manager, losses={"grpo": {"kl": 0.1}})


@pytest.mark.parametrize("after", [1, 5])
def test_a_run_is_taken_up_within_its_warm_start_and_after_it_bit_for_bit(after: int) -> None:
    settings = {"until": {"addition-1": 0.1}}
    whole = build(PluginManager(), epochs=8, **settings)
    whole.train()
    first = build(PluginManager(), epochs=8, **settings)
    first.state.total_epochs = after
    first.train()
    second = build(PluginManager(), epochs=8, **settings)
    second.load_state_dict(first.state_dict())
    second.train()
    for name, weights in whole.policy.state_dict().items():
        assert torch.equal(weights, second.policy.state_dict()[name])
