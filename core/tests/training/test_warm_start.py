"""Supervised learning before reinforcement learning: it ends by what the policy can do, and a run can be taken up in it."""

from __future__ import annotations

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
from hookline.rollout.text import CharacterTokenizer, arithmetic_lessons
from hookline.testing import EventRecorder
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig
from hookline.training.errors import TrainingError
from hookline.training.tasks.demonstrations import demonstrations
from hookline.training.warm_start import WarmStart

TOKENIZER = CharacterTokenizer("0123456789+=")
LESSONS = arithmetic_lessons("addition-1", max_new_tokens=3)
EXAMPLES = demonstrations([(f"{a}+{b}=", str(a + b)) for a in range(10) for b in range(10)], TOKENIZER)


def build(plugins: PluginManager, epochs: int = 8, losses: Any = None, **warm_start: Any) -> Trainer:
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(LESSONS, micro_eval_frequency=None, eval_frequency=None),
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
    usual = WarmStart(EXAMPLES, {"addition-1": 0.2}, steps_per_epoch=4, batch_size=25, learning_rate=5e-3)
    return Trainer(config, plugins=plugins, worker=worker, warm_start=replace(usual, **warm_start))


def test_the_policy_is_shown_examples_until_it_solves_enough_and_plays_then(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    judged: list[float] = []

    class Watch:
        @hookimpl
        def on_evaluation_end(self, state: Any, scores: Mapping[str, float]) -> None:
            judged.extend(
                share for name, share in scores.items() if name.endswith("warm_start/addition-1/success_rate")
            )

    hookline_manager.register(Watch())
    trainer = build(hookline_manager, epochs=12)
    assert trainer.state.total_steps is None
    trainer.train()
    assert 1 <= len(judged) < 12
    assert all(share < 0.2 for share in judged[:-1])
    assert judged[-1] >= 0.2
    # Four steps of examples each, then two of played experience each.
    assert trainer.state.step == 4 * len(judged) + 2 * (12 - len(judged))
    assert len(hookline_events.of("on_rollout_end")) == 12 - len(judged)


def test_a_warm_start_that_does_not_work_says_how_far_it_came(hookline_manager: PluginManager) -> None:
    trainer = build(hookline_manager, until={"addition-1": 1.1}, max_epochs=2)
    with pytest.raises(TrainingError, match=r"after 2 epochs of warm start .* \d+% of addition-1 \(of 110%\): give it"):
        trainer.train()


def test_a_policy_cannot_be_kept_near_where_a_warm_start_leads_away_from(hookline_manager: PluginManager) -> None:
    with pytest.raises(
        TrainingError, match=r"loss 'grpo' keeps the policy near .* make the warm start a run of its own"
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
