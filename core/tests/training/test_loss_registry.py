"""Losses by name: Hookline's own and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from hookline import PluginManager, hookimpl
from hookline.plugin_manager.registry import DuplicateNameError
from hookline.testing import EventRecorder
from hookline.training import Loss, Trainer
from hookline.training.errors import TrainerConfigError, UnknownLossError
from hookline.training.losses import SharedLossData, actions_forward
from hookline.training.losses.registry import build_losses, known_losses


class Entropy(Loss):
    def run_train(self, shared: SharedLossData) -> Tensor:
        return -actions_forward(shared).entropy.mean()


class Offers:
    def __init__(self, **losses: Any) -> None:
        self.losses = losses

    @hookimpl
    def register_losses(self) -> Mapping[str, Any]:
        return self.losses


def test_a_loss_of_a_plugin_takes_part_in_a_run(
    playing: Callable[..., Trainer], hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    hookline_manager.register(Offers(entropy=Entropy))
    playing(epochs=1, losses={"ppo_actor": {}, "ppo_critic": {}, "entropy": {"weight": 0.5}}).train()
    (first, *_) = [event.arguments["report_data"] for event in hookline_events.of("post_training_step")]
    assert first["train/entropy"] == pytest.approx(-first["train/ppo_actor/entropy"], abs=1e-6)
    expected = first["train/ppo_actor"] + 0.5 * first["train/ppo_critic"] + 0.5 * first["train/entropy"]
    assert first["train/loss"] == pytest.approx(expected, abs=1e-5)


def test_a_name_that_two_plugins_give_is_an_error_that_names_both(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Offers(entropy=Entropy), "one")
    hookline_manager.register(Offers(entropy=Entropy), "two")
    with pytest.raises(
        DuplicateNameError, match="plugin '(one|two)' and plugin '(one|two)' both register a loss 'entropy'"
    ):
        known_losses(hookline_manager)


def test_a_plugin_cannot_take_the_name_of_a_loss_that_ships_with_hookline(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Offers(grpo=Entropy), "one")
    with pytest.raises(DuplicateNameError, match="hookline itself and plugin 'one' both register a loss 'grpo'"):
        known_losses(hookline_manager)


def test_what_a_plugin_gives_must_be_a_class_of_losses(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Offers(entropy=42), "one")
    with pytest.raises(TrainerConfigError, match="plugin 'one': the loss 'entropy' must be a Loss class, not 42"):
        known_losses(hookline_manager)


def test_an_unknown_loss_is_an_error_with_the_nearest(hookline_manager: PluginManager) -> None:
    with pytest.raises(
        UnknownLossError,
        match=r"there is no loss 'ppo_acter' \(did you mean 'ppo_actor'\?\); known are grpo, kl, ppo_actor, ppo_critic, sft",
    ):
        build_losses({"ppo_acter": {}}, hookline_manager)


def test_an_unknown_option_of_a_loss_is_an_error_with_the_nearest(hookline_manager: PluginManager) -> None:
    with pytest.raises(
        TrainerConfigError, match=r"loss 'grpo' has no option 'clipp' \(did you mean 'clip'\?\); it has"
    ):
        build_losses({"grpo": {"clipp": 0.1}}, hookline_manager)


def test_no_losses_are_an_error(hookline_manager: PluginManager) -> None:
    with pytest.raises(TrainerConfigError, match="TrainerConfig.losses is empty: name at least one loss"):
        build_losses({}, hookline_manager)
