"""A loss is told of the moments of a run that it has methods for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from hookline import PluginManager, hookimpl
from hookline.training import Trainer
from hookline.training.losses.loss import Loss, SharedLossData
from hookline_hookspecs import TrainerState


class Told(Loss):
    """A loss of nothing that notes down what it is told."""

    seen: list[str]

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config)
        self.seen = Told.seen = []

    def on_new_training_run(self, trainer_state: TrainerState) -> None:
        self.seen.append(f"run at step {trainer_state.step}")

    def on_rollout_start(self, trainer_state: TrainerState) -> None:
        self.seen.append(f"rollout of epoch {trainer_state.epoch}")

    def on_mb_end(self, trainer_state: TrainerState) -> None:
        self.seen.append(f"minibatch {trainer_state.step}")

    def on_train_phase_end(self, trainer_state: TrainerState) -> None:
        self.seen.append(f"phase of epoch {trainer_state.epoch}")

    def run_train(self, shared: SharedLossData) -> Tensor:
        self.seen.append("train")
        return next(shared.policy.parameters()).sum() * 0


@pytest.fixture
def plugins(hookline_manager: PluginManager) -> PluginManager:
    class Losses:
        @hookimpl
        def register_losses(self) -> Mapping[str, type[Loss]]:
            return {"told": Told}

    hookline_manager.register(Losses())
    return hookline_manager


def test_a_loss_is_told_of_the_moments_of_a_run(playing: Callable[..., Trainer], plugins: PluginManager) -> None:
    losses = {"ppo_actor": {}, "ppo_critic": {}, "told": {}}
    playing(epochs=1, minibatches=1, rollouts_per_epoch=2, losses=losses, plugins=plugins).train()
    assert Told.seen == [
        "run at step 0",
        "rollout of epoch 0",
        "rollout of epoch 0",
        "train",
        "minibatch 1",
        "phase of epoch 0",
    ]
    assert not plugins.has_plugin("losses")


def test_moments_are_told_though_the_schedule_leaves_the_loss_out(
    playing: Callable[..., Trainer], plugins: PluginManager
) -> None:
    losses = {"ppo_actor": {}, "ppo_critic": {}, "told": {"schedule": [{"begin": 5}]}}
    playing(epochs=1, minibatches=1, losses=losses, plugins=plugins).train()
    assert Told.seen == ["run at step 0", "rollout of epoch 0", "minibatch 1", "phase of epoch 0"]


def test_what_a_loss_raises_when_told_ends_the_run(
    playing: Callable[..., Trainer], plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Told, trainer_state: TrainerState) -> None:
        raise ValueError("no target network")

    monkeypatch.setattr(Told, "on_mb_end", fail)
    with pytest.raises(ValueError, match="no target network"):
        playing(losses={"ppo_actor": {}, "ppo_critic": {}, "told": {}}, plugins=plugins).train()
    assert not plugins.has_plugin("losses")
