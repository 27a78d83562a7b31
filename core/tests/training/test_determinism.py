"""Same seed, same weights; and a resumed run equals the run that never stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookline import PluginManager, hookimpl
from hookline.policies import Discrete, MLPPolicy, TransformerPolicy
from hookline.rollout import CurriculumConfig, Lesson, RolloutWorker, RolloutWorkerConfig, SamplingConfig
from hookline.rollout.text import CharacterTokenizer, Conversation, Limits, TextProblem
from hookline.testing import EventRecorder
from hookline.training import RolloutConfig, SupervisedConfig, Trainer, TrainerConfig
from hookline.training.errors import ReferencePolicyError, TrainingError
from hookline.training.losses import SharedLossData
from hookline.training.losses.sft import SFT

EXAMPLES = [{"tokens": [2 + (i * k) % 7 for k in range(3 + i % 3)]} for i in range(1, 12)]


class WithDropout(nn.Module):
    """A model that draws from torch's own generator as it trains."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.embedding = nn.Embedding.from_pretrained(torch.randn(10, 12, generator=generator), freeze=False)
        self.dropout = nn.Dropout(0.3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.embedding(tokens)) @ self.embedding.weight.T


def supervised(epochs: int, plugins: PluginManager, seed: int = 0, **fields: Any) -> Trainer:
    config = TrainerConfig(epochs=epochs, seed=seed, supervised=SupervisedConfig(batch_size=4), **fields)
    config.optimizer.schedule = "constant"
    return Trainer(config, policy=WithDropout(), dataset=EXAMPLES, plugins=plugins)


def control(epochs: int, plugins: PluginManager, seed: int = 0, policy: Any = None, **fields: Any) -> Trainer:
    sizes = RolloutConfig(num_environments=4, steps_per_rollout=8, minibatches=2, update_epochs=2)
    config = TrainerConfig(epochs=epochs, seed=seed, rollout=sizes, **fields)
    config.optimizer.schedule = "constant"
    lessons = CurriculumConfig(micro_eval_frequency=None, eval_frequency=None)
    return Trainer(config, lessons, policy or MLPPolicy(4, Discrete(2), hidden=(8,)), plugins=plugins)


class OwnAgent(nn.Module):
    """A policy without a JAX forward, so that torch plays it; its dropout draws from torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1))
        self.heads = nn.Linear(8, 3)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.heads(self.body(obs))
        return outputs[..., :2], outputs[..., 2]


def own_module(epochs: int, plugins: PluginManager, seed: int = 0, **fields: Any) -> Trainer:
    return control(epochs, plugins, seed, OwnAgent(), **fields)


class Growing:
    """A conversation of one or two turns: the second number should be larger than the first."""

    limits = Limits(max_turns=2, max_new_tokens=3)

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        return TextProblem(f"{rng.integers(10)}=")

    def converse(self, problem: TextProblem) -> Conversation:
        first = yield problem.prompt
        return float(bool(first) and (yield "+=") > first)


def text(epochs: int, plugins: PluginManager, seed: int = 0, rewards: Any = None, **fields: Any) -> Trainer:
    tokenizer = CharacterTokenizer("0123456789+=")
    policy = TransformerPolicy(tokenizer.size, width=16, layers=1, heads=2, context=24)
    lessons = [Lesson("growing", Growing())]
    worker = RolloutWorker(
        RolloutWorkerConfig(
            CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None),
            policy=policy,
            num_environments=4,
            sampling=SamplingConfig(samples_per_prompt=4),
            tokenizer=tokenizer,
            seed=seed,
        ),
        plugins,
    )
    config = TrainerConfig(
        epochs=epochs,
        seed=seed,
        **fields,
        losses={"grpo": {"kl": 0.1}},
        rollout=RolloutConfig(minibatches=2, update_epochs=1, rollouts_per_epoch=2),
    )
    config.optimizer.schedule = "constant"
    return Trainer(config, policy=policy, plugins=plugins, worker=worker, rewards=rewards)


MODES = pytest.mark.parametrize("mode", [supervised, control, own_module, text])


def weights(trainer: Trainer) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def losses_of(recorder: EventRecorder) -> list[float]:
    return [event.arguments["report_data"]["train/loss"] for event in recorder.of("post_training_step")]


@MODES
def test_the_same_seed_gives_the_same_weights_bit_for_bit(mode: Callable[..., Trainer]) -> None:
    one, other = mode(2, PluginManager()), mode(2, PluginManager())
    one.train()
    torch.rand(3), np.random.rand(3)  # what others draw in between is no matter of ours
    other = mode(2, PluginManager())
    other.train()
    assert_same(weights(one), weights(other))


@MODES
def test_another_seed_gives_other_weights(mode: Callable[..., Trainer]) -> None:
    one, other = mode(1, PluginManager()), mode(1, PluginManager(), seed=1)
    one.train()
    other.train()
    assert not all(torch.equal(a, b) for a, b in zip(weights(one).values(), weights(other).values(), strict=True))


@MODES
def test_a_run_that_goes_on_from_a_saved_state_ends_as_one_that_never_stopped(mode: Callable[..., Trainer]) -> None:
    whole_plugins, later_plugins = PluginManager(), PluginManager()
    whole = mode(4, whole_plugins)
    with EventRecorder(whole_plugins) as of_whole:
        whole.train()
    first = mode(2, PluginManager())
    first.train()
    saved = first.state_dict()
    # As a file would hold it: arrays, and the rest as JSON.
    saved = {
        "policy": {name: tensor.clone() for name, tensor in saved["policy"].items()},
        "optimizer": saved["optimizer"],
        **json.loads(json.dumps({name: saved[name] for name in ("counters", "progress")})),
    }
    later = mode(4, later_plugins)
    later.load_state_dict(saved)
    with EventRecorder(later_plugins) as of_later:
        later.train()
    assert_same(weights(whole), weights(later))
    assert losses_of(of_later) == losses_of(of_whole)[len(losses_of(of_whole)) // 2 :]
    (start,) = of_later.of("pre_training")
    assert start.arguments["report_data"]["start_epoch"] == 2
    assert later.state.epoch == whole.state.epoch == 3
    assert (later.state.step, later.state.agent_step) == (whole.state.step, whole.state.agent_step)


class Stop(Exception):
    """Ends a run from outside."""


class StopsAfter:
    critical = True

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    @hookimpl(trylast=True)
    def on_epoch_end(self, state: Any) -> None:
        if state.epoch == self._epoch:
            raise Stop


def with_checkpoints() -> PluginManager:
    checkpoint = pytest.importorskip("hookline_checkpoint")
    plugins = PluginManager()
    plugins.register(checkpoint.Checkpoint(checkpoint.Options(every=2), plugins.emit), "checkpoint")
    return plugins


@MODES
def test_a_run_that_was_stopped_resumes_from_its_checkpoint_to_the_same_end(
    mode: Callable[..., Trainer], tmp_path: Path
) -> None:
    whole = mode(5, PluginManager())
    whole.train()
    plugins = with_checkpoints()
    plugins.register(StopsAfter(2))  # in the epoch after that of the checkpoint
    with pytest.raises(Stop):
        mode(5, plugins, run_dir=tmp_path / "run").train()
    resumed = mode(5, with_checkpoints(), run_dir=tmp_path / "run", resume=True)
    resumed.train()
    assert_same(weights(whole), weights(resumed))
    assert resumed.state.step == whole.state.step


def test_a_run_that_models_reward_resumes_from_its_checkpoint_with_the_scores_that_they_remember(
    tmp_path: Path,
) -> None:
    for package in ("ahocorasick_rs", "transformers"):
        pytest.importorskip(package)
    from hookline.rewards import IntegratedRewardConfig, RewardConfig
    from hookline.testing.tiny_models import tiny_model

    models = {
        "perplexity_model": tiny_model(tmp_path / "language"),
        "reward_model": tiny_model(tmp_path / "reward", labels=1),
    }
    rewards = IntegratedRewardConfig(RewardConfig(**models), enable_verification=False, min_reward_threshold=0.0)

    def remembered(trainer: Trainer) -> Any:
        return trainer.worker.rewards.state_dict()["processor"]

    whole = text(4, PluginManager(), rewards=rewards)
    whole.train()
    plugins = with_checkpoints()
    plugins.register(StopsAfter(2))
    with pytest.raises(Stop):
        text(4, plugins, rewards=rewards, run_dir=tmp_path / "run").train()
    resumed = text(4, with_checkpoints(), rewards=rewards, run_dir=tmp_path / "run", resume=True)
    resumed.train()
    assert_same(weights(whole), weights(resumed))
    for option in models:
        one, other = remembered(whole)[option], remembered(resumed)[option]
        assert len(one["scores"]) > 16
        np.testing.assert_array_equal(one["keys"], other["keys"])
        np.testing.assert_array_equal(one["scores"], other["scores"])


class Fading(SFT):
    """A loss that counts for less each time it is asked, and so has something to remember."""

    share = 1.0

    def run_train(self, shared: SharedLossData) -> Tensor:
        self.share *= 0.7
        return super().run_train(shared) * self.share

    def state_dict(self) -> dict[str, Any]:
        return {"share": self.share}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.share = state.get("share", 1.0)


class Offer:
    @hookimpl
    def register_losses(self) -> Mapping[str, Any]:
        return {"fading": Fading}


def test_what_a_loss_remembers_is_a_part_of_the_state() -> None:
    def fading(epochs: int) -> Trainer:
        plugins = PluginManager()
        plugins.register(Offer())
        config = TrainerConfig(epochs=epochs, losses={"fading": {}}, supervised=SupervisedConfig(batch_size=4))
        config.optimizer.schedule = "constant"
        return Trainer(config, policy=WithDropout(), dataset=EXAMPLES, plugins=plugins)

    whole = fading(4)
    whole.train()
    first = fading(2)
    first.train()
    saved = first.state_dict()
    later = fading(4)
    later.load_state_dict(saved)
    later.train()
    assert_same(weights(whole), weights(later))


def test_a_state_of_more_ranks_is_an_error() -> None:
    trainer = supervised(1, PluginManager())
    saved = trainer.state_dict()
    saved["progress"]["ranks"] *= 2
    with pytest.raises(TrainingError, match=r"the run was saved with 2 rank\(s\) and cannot resume exactly with 1"):
        trainer.load_state_dict(saved)


def beginning_with(policy_seed: int, **losses: Any) -> Trainer:
    """A trainer whose first policy is the caller's."""
    policy = TransformerPolicy(10, width=16, layers=1, heads=2, context=8)
    module = policy.torch_module(policy.initial_weights(policy_seed))
    return Trainer(TrainerConfig(losses={"sft": {}, **losses}), policy=module, dataset=EXAMPLES)


def test_a_run_goes_on_with_the_reference_that_it_began_with() -> None:
    saved = json.loads(json.dumps(beginning_with(1, kl={}).progress()))
    beginning_with(1, kl={}).load_progress(saved)
    with pytest.raises(
        ReferencePolicyError,
        match=r"loss 'kl': the initial policy differs from the one that the run began with "
        r"\(fingerprint \w{8} then, \w{8} now\)\. To resume, build the trainer with the policy and the seed of the first",
    ):
        beginning_with(2, kl={}).load_progress(saved)
    beginning_with(2).load_progress(beginning_with(1).progress())  # nothing there depends on it


def test_a_state_that_is_refused_changes_nothing() -> None:
    saved = beginning_with(1, kl={}).state_dict()
    other = beginning_with(2, kl={})
    before = weights(other)
    with pytest.raises(ReferencePolicyError):
        other.load_state_dict(saved)
    assert_same(weights(other), before)


def test_grpo_with_a_reference_is_as_particular_about_it() -> None:
    saved = text(1, PluginManager()).progress()
    text(1, PluginManager()).load_progress(saved)
    with pytest.raises(ReferencePolicyError, match="loss 'grpo': the initial policy differs from the one"):
        text(1, PluginManager(), seed=1).load_progress(saved)
