"""Tasks by name: each makes a trainer with all that a run needs.

A task is a function `(config, plugins) -> Trainer`; a config of None is the task's own. A plugin brings more by
`register_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from hookline.plugins.errors import did_you_mean
from hookline.plugins.manager import PluginManager
from hookline.plugins.offers import gather_offers
from hookline.policies import TransformerPolicy
from hookline.rollout.text import ArithmeticProblems, CharacterTokenizer
from hookline.training.config import OptimizerConfig, RolloutConfig, SupervisedConfig, TrainerConfig
from hookline.training.errors import UnknownTaskError
from hookline.training.trainer import Trainer

__all__ = ["Task", "cartpole", "find_task", "supervised_addition"]

Task = Callable[[TrainerConfig | None, PluginManager], Trainer]

TOKENIZER: Final = CharacterTokenizer("0123456789+=")


def supervised_addition(config: TrainerConfig | None, plugins: PluginManager) -> Trainer:
    """A tiny transformer learns to add numbers of one digit from examples; a few seconds."""
    config = config or TrainerConfig(
        epochs=4,
        optimizer=OptimizerConfig(learning_rate=3e-3, eps=1e-8, max_grad_norm=1.0),
        supervised=SupervisedConfig(batch_size=32, validate_every=16),
    )
    generator = np.random.default_rng(config.seed)
    problems = [ArithmeticProblems(digits=1)(generator) for _ in range(320)]
    examples = [_example(prompt, answer) for prompt, answer in problems]
    policy = TransformerPolicy(vocabulary=TOKENIZER.size, width=32, layers=1, heads=2, context=8)
    return Trainer(config, policy=policy, dataset=examples[64:], validation_dataset=examples[:64], plugins=plugins)


def _example(prompt: str, answer: str) -> dict[str, list[int] | list[bool]]:
    """The answer is to be learnt, its end included; the prompt is given."""
    before, after = TOKENIZER.encode(prompt), [*TOKENIZER.encode(answer), TOKENIZER.end]
    return {"tokens": before + after, "loss_mask": [False] * len(before) + [True] * len(after)}


def cartpole(config: TrainerConfig | None, plugins: PluginManager) -> Trainer:
    """PPO on CartPole."""
    config = config or TrainerConfig(
        epochs=100,
        losses={"ppo_actor": {"entropy": 0.0}, "ppo_critic": {"gamma": 0.98, "gae_lambda": 0.8, "clip": None}},
        optimizer=OptimizerConfig(learning_rate=1e-3),
        rollout=RolloutConfig(num_environments=8, steps_per_rollout=32, minibatches=1, update_epochs=20),
    )
    return Trainer(config, plugins=plugins)


OWN_TASKS: Final[dict[str, Task]] = {"addition": supervised_addition, "cartpole": cartpole}


def find_task(name: str, plugins: PluginManager) -> Task:
    """The task that goes by a name: one of Hookline's own, or one of a plugin's."""
    tasks = gather_offers(plugins, "register_tasks", "a task", OWN_TASKS)
    if name not in tasks:
        raise UnknownTaskError(
            f"there is no task {name!r}{did_you_mean(name, tasks)}; known are {', '.join(sorted(tasks))}"
        )
    task: Task = tasks[name].value
    return task
