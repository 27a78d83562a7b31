"""Tasks by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hookline import PluginManager, hookimpl
from hookline.plugins.offers import DuplicateOfferError
from hookline.training import RolloutConfig, TrainerConfig
from hookline.training.tasks import cartpole, find_task


class Offers:
    def __init__(self, **tasks: Any) -> None:
        self.tasks = tasks

    @hookimpl
    def register_tasks(self) -> Mapping[str, Any]:
        return self.tasks


def test_a_task_makes_a_trainer_that_runs(hookline_manager: PluginManager) -> None:
    assert find_task("cartpole", hookline_manager) is cartpole
    config = TrainerConfig(epochs=1, rollout=RolloutConfig(4, 8, minibatches=2, update_epochs=1))
    assert cartpole(config, hookline_manager).train().step == 2


def test_a_plugin_brings_tasks(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Offers(chess=cartpole))
    assert find_task("chess", hookline_manager) is cartpole


def test_a_task_that_is_given_twice_is_an_error_that_names_both(hookline_manager: PluginManager) -> None:
    hookline_manager.register(Offers(cartpole=cartpole), "one")
    with pytest.raises(DuplicateOfferError, match="hookline itself and plugin 'one' both give a task 'cartpole'"):
        find_task("addition", hookline_manager)
