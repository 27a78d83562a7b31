"""GRPO with `hookline_reward`: generations are rollouts, and reward and verifier plugins have their say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_trainers import make_trainer

from hookline import hookimpl
from hookline.errors import HooklineError
from hookline.rewards import IntegratedRewardConfig, RewardConfig
from hookline_hookspecs import Episode, EpisodeBatch, HookContext, Rollout, VerificationReport, VerificationResult
from hookline_transformers import HooklineCallback, hookline_reward, hookline_run

ONLY_PLUGINS = RewardConfig(length_weight=0.0, keyword_weight=0.0, perplexity_weight=0.0, accuracy_weight=0.0)


class Judge:
    """Rewards every second completion, finds a fault in every fourth, and notes all it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.rollouts: list[Rollout] = []
        self.contexts: list[HookContext] = []
        self.rejected: list[Episode] = []

    @hookimpl
    def on_epoch_start(self) -> None:
        self.events.append("epoch")

    @hookimpl
    def on_rollout_start(self) -> None:
        self.events.append("rollout")

    @hookimpl
    def on_rollout_end(self, context: HookContext, rollout: Rollout) -> None:
        self.events.append("rollout end")
        self.contexts.append(context)
        self.rollouts.append(rollout)

    @hookimpl
    def pre_rewards(self) -> None:
        self.events.append("rewards")

    @hookimpl
    def score_episodes(self, batch: EpisodeBatch) -> Mapping[str, Sequence[float]]:
        return {"judge": [index % 2 for index, _ in enumerate(batch)]}

    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> Mapping[str, Sequence[VerificationReport]]:
        fine, wrong = VerificationReport(), VerificationReport(VerificationResult.FAIL, 0.0)
        return {"judge": [wrong if index % 4 == 3 else fine for index, _ in enumerate(batch)]}

    @hookimpl
    def on_episodes_filtered(self, rejected: Sequence[Episode]) -> None:
        self.events.append("filtered")
        self.rejected += rejected

    @hookimpl
    def on_train_phase_start(self) -> None:
        self.events.append("train phase")

    @hookimpl
    def pre_training_step(self) -> None:
        self.events.append("step")


GENERATION = ["epoch", "rollout", "rollout end", "rewards", "filtered", "train phase", "step", "step"]


def test_a_generation_is_an_epoch_with_its_rollout_rewards_and_steps(
    folder: Path, recorded: Any, monkeypatch: Any
) -> None:
    verifiers = "verify-length,verify-toxicity,verify-coherence,verify-factual"
    monkeypatch.setenv("HOOKLINE_DISABLE", verifiers, prepend=",")
    judge = Judge()
    config = IntegratedRewardConfig(reward_config=ONLY_PLUGINS, strict_filtering=True, min_reward_threshold=0.0)
    callback = HooklineCallback(folder / "run", plugins={"judge": judge})
    trainer = make_trainer("grpo", folder, callback, max_steps=4, logging_steps=1, reward=hookline_reward(config))
    with hookline_run(trainer):
        trainer.train()
    assert judge.events == GENERATION * 2
    assert [own.step for own in judge.contexts] == [1, 2]
    for rollout in judge.rollouts:
        assert len(rollout.episodes) == 4
        for episode in rollout.episodes:
            assert episode.reference == str(int(episode.prompt.partition("+")[0]) + 1)
            assert episode.metadata["difficulty"] == 1
            assert len(episode.arrays["completion_ids"]) <= 6
        assert [own.reward for own in rollout.episodes] == [0.0, 1.0, 0.0, 1.0]
    assert judge.rejected == [rollout.episodes[3] for rollout in judge.rollouts]
    # Of four completions the last is rejected: TRL's own mean is of those that are trained on.
    assert recorded["train/reward"][1] == pytest.approx(1 / 3)
    assert recorded["rollout/acceptance_rate"].popitem()[1] == 0.75
    assert recorded["rewards/acceptance_rate"].popitem()[1] == 0.75


def test_a_step_that_accumulates_several_generations_announces_each_of_them(folder: Path) -> None:
    judge = Judge()
    config = IntegratedRewardConfig(reward_config=ONLY_PLUGINS, enable_verification=False)
    callback = HooklineCallback(folder / "run", plugins={"judge": judge})
    more = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "num_iterations": 1}
    trainer = make_trainer("grpo", folder, callback, max_steps=2, reward=hookline_reward(config), **more)
    with hookline_run(trainer):
        trainer.train()
    assert judge.events == [*GENERATION[:-1], "rollout", "rollout end", "rewards", "filtered"] * 2


def test_completions_of_a_validation_are_scored_and_neither_filtered_nor_announced(folder: Path) -> None:
    judge = Judge()
    config = IntegratedRewardConfig(reward_config=ONLY_PLUGINS, enable_verification=False)
    callback = HooklineCallback(folder / "run", plugins={"judge": judge})
    more = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4}
    trainer = make_trainer("grpo", folder, callback, max_steps=2, reward=hookline_reward(config), **more)
    with hookline_run(trainer):
        trainer.train()
    assert judge.events == [*GENERATION, "rewards"]


def test_without_a_run_the_function_rewards_conversations_all_the_same() -> None:
    reward = hookline_reward(IntegratedRewardConfig(reward_config=RewardConfig(accuracy_weight=1.0, length_weight=0.0)))
    prompts = [[{"role": "user", "content": "What is 2+2?"}]] * 2
    completions = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in ("4", "no idea")]
    right, wrong = reward(prompts=prompts, completions=completions, reference=["4", "4"])
    assert right is not None
    assert wrong is not None
    assert right > wrong


def test_two_functions_in_one_trainer_are_refused(folder: Path) -> None:
    trainer = make_trainer(
        "grpo", folder, HooklineCallback(folder / "run"), reward=[hookline_reward(), hookline_reward()]
    )
    with pytest.raises(HooklineError, match="a trainer has one hookline_reward"), hookline_run(trainer):
        trainer.train()
