"""Bad input, and what the trainer says to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hookline import PluginManager, hookimpl
from hookline.policies import PolicyError, TransformerPolicy
from hookline.testing import EventRecorder
from hookline.training import SupervisedConfig, Trainer, TrainerConfig
from hookline.training.errors import (
    DatasetError,
    ExperienceError,
    NonFiniteLossError,
    TrainerConfigError,
    TrainingError,
    UnknownLossError,
    UnknownTaskError,
)
from hookline.training.tasks import find_task


def test_a_loss_that_is_no_number_ends_the_run_before_it_spoils_the_weights(
    supervised: Callable[..., Trainer], hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    class Poison:
        @hookimpl
        def on_epoch_start(self, state: Any) -> None:
            if state.epoch == 1:
                with torch.no_grad():
                    state.policy.norm.bias[0] = float("nan")

    trainer = supervised()
    hookline_manager.register(Poison())
    with pytest.raises(
        NonFiniteLossError,
        match="loss 'sft' is nan at step 2 of epoch 1. This step did not change the weights. "
        "Check the data and rewards for such values, or lower optimizer.learning_rate",
    ):
        trainer.train()
    assert trainer.policy.token_embedding.weight.isfinite().all()
    assert hookline_events.names()[-1] == "on_training_failed"


def test_an_empty_dataset_is_an_error(supervised: Callable[..., Trainer]) -> None:
    with pytest.raises(DatasetError, match="the dataset is empty: it needs at least one example"):
        supervised(dataset=[])
    with pytest.raises(DatasetError, match="the validation dataset is empty"):
        supervised(validation_dataset=[])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([{"tokens": [1]}]), "the dataset is a list_iterator; it needs len() and [], as a list has"),
        ([[2, 3, 4]], "example 0 of the dataset is [2, 3, 4]; an example is a mapping of names to numbers"),
        (
            [{"token": [2, 3]}],
            "the losses need 'tokens' in each example of the dataset (did you mean 'token'?); it has token",
        ),
        (
            [{"tokens": [2, 3]}, {"tokens": [2], "loss_mask": [True]}],
            "examples of the dataset have different fields",
        ),
    ],
)
def test_a_dataset_that_cannot_be_read_is_an_error(
    supervised: Callable[..., Trainer], dataset: Any, message: str
) -> None:
    with pytest.raises(DatasetError, match=re.escape(message)):
        supervised(dataset=dataset, shuffle=False).train()


def test_experience_that_lacks_what_a_loss_needs_is_an_error(playing: Callable[..., Trainer]) -> None:
    with pytest.raises(
        ExperienceError,
        match="loss 'grpo' needs 'tokens' in the experience, which the rollouts do not have.*; they have",
    ):
        playing(losses={"grpo": {}}).train()


def test_an_actor_without_a_critic_is_told_what_it_lacks(playing: Callable[..., Trainer]) -> None:
    with pytest.raises(ExperienceError, match="loss 'ppo_actor' needs 'advantages', which the data does not have"):
        playing(losses={"ppo_actor": {}}).train()


def test_rows_that_cannot_be_divided_are_an_error_before_the_run(playing: Callable[..., Trainer]) -> None:
    with pytest.raises(
        TrainerConfigError,
        match="the 32 rows of an epoch's experience cannot be divided into rollout.minibatches = 5: set it to 4",
    ):
        playing(minibatches=5)


def test_an_unknown_loss_or_task_is_an_error_with_the_nearest(
    playing: Callable[..., Trainer], hookline_manager: PluginManager
) -> None:
    with pytest.raises(UnknownLossError, match=r"there is no loss 'pp_critic' \(did you mean 'ppo_critic'\?\)"):
        playing(losses={"pp_critic": {}})
    with pytest.raises(UnknownTaskError, match=r"there is no task 'cartpol' \(did you mean 'cartpole'\?\); known are"):
        find_task("cartpol", hookline_manager)


def test_all_numbers_that_make_no_sense_are_listed_at_once() -> None:
    with pytest.raises(
        TrainerConfigError,
        match="TrainerConfig: epochs must be at least 1, got 0; supervised.batch_size must be at least 1, got 0",
    ):
        Trainer(TrainerConfig(epochs=0, supervised=SupervisedConfig(batch_size=0)))


def test_a_dataset_needs_a_policy() -> None:
    with pytest.raises(TrainingError, match="a dataset needs a policy"):
        Trainer(dataset=[{"tokens": [1, 2]}])


def test_a_policy_that_is_no_policy_is_an_error() -> None:
    with pytest.raises(
        TrainingError,
        match="the policy is a int; it must be a torch module, the folder or name of a Hugging Face model",
    ):
        Trainer(policy=7, dataset=[{"tokens": [1, 2]}])


def test_a_module_that_rollouts_cannot_be_made_of_is_an_error() -> None:
    with pytest.raises(PolicyError, match=r"a Linear: forward\(obs\) must return two tensors, \(logits, value\)"):
        Trainer(policy=nn.Linear(4, 2))


def test_a_policy_that_cannot_be_trained_is_an_error(supervised: Callable[..., Trainer]) -> None:
    frozen = TransformerPolicy(vocabulary=10, width=16, layers=1, heads=2, context=8).torch_module()
    with pytest.raises(TrainingError, match="the policy, a Transformer, has no parameter that can be trained"):
        supervised(policy=frozen.requires_grad_(False))


def test_plugins_of_another_rank_are_an_error() -> None:
    with (
        PluginManager(rank=1) as plugins,
        pytest.raises(TrainingError, match="this is rank 0, but its plugin manager has rank 1"),
    ):
        Trainer(plugins=plugins)
