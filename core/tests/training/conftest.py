"""Trainers small enough to run in a test: four examples of five tokens, or four CartPoles for eight steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from hookline import PluginManager
from hookline.policies import TransformerPolicy
from hookline.rollout import CurriculumConfig
from hookline.training import OptimizerConfig, RolloutConfig, SupervisedConfig, Trainer, TrainerConfig

EXAMPLES = [{"tokens": [2 + (i * k) % 7 for k in range(3 + i % 3)]} for i in range(1, 9)]
"""Eight examples of three to five tokens."""


@pytest.fixture
def supervised(hookline_manager: PluginManager) -> Callable[..., Trainer]:
    """Makes a trainer that learns from examples: `supervised(epochs=2, batch_size=4)`."""

    def build(
        *,
        epochs: int = 2,
        dataset: Any = EXAMPLES,
        plugins: PluginManager | None = None,
        policy: Any = None,
        validation_dataset: Any = None,
        learning_rate: float = 0.01,
        **fields: Any,
    ) -> Trainer:
        own = {name: fields.pop(name) for name in list(fields) if name in SupervisedConfig.__dataclass_fields__}
        config = TrainerConfig(
            epochs=epochs,
            optimizer=OptimizerConfig(learning_rate=learning_rate),
            supervised=SupervisedConfig(**{"batch_size": 4, **own}),
            **fields,
        )
        return Trainer(
            config,
            policy=policy or TransformerPolicy(vocabulary=10, width=16, layers=1, heads=2, context=8),
            dataset=dataset,
            validation_dataset=validation_dataset,
            plugins=plugins or hookline_manager,
        )

    return build


@pytest.fixture
def playing(hookline_manager: PluginManager) -> Callable[..., Trainer]:
    """Makes a trainer that learns CartPole by rollouts: `playing(epochs=2, minibatches=2)`."""

    def build(*, epochs: int = 2, plugins: PluginManager | None = None, **fields: Any) -> Trainer:
        own = {name: fields.pop(name) for name in list(fields) if name in RolloutConfig.__dataclass_fields__}
        sizes = {"num_environments": 4, "steps_per_rollout": 8, "minibatches": 2, "update_epochs": 1, **own}
        config = TrainerConfig(epochs=epochs, rollout=RolloutConfig(**sizes), **fields)
        lessons = CurriculumConfig(micro_eval_frequency=None, eval_frequency=None)
        return Trainer(config, lessons, plugins=plugins or hookline_manager)

    return build
