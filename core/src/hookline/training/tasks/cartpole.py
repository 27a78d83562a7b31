"""`cartpole`: PPO balances a pole, within seconds."""

from __future__ import annotations

from hookline.plugins.manager import PluginManager
from hookline.training.config import OptimizerConfig, RolloutConfig, TrainerConfig
from hookline.training.tasks.task import task
from hookline.training.trainer import Trainer

__all__ = ["cartpole"]


@task(
    epochs=100,
    losses={"ppo_actor": {"entropy": 0.0}, "ppo_critic": {"gamma": 0.98, "gae_lambda": 0.8, "clip": None}},
    optimizer=OptimizerConfig(learning_rate=1e-3),
    rollout=RolloutConfig(num_environments=8, steps_per_rollout=32, minibatches=1, update_epochs=20),
)
def cartpole(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """PPO on CartPole."""
    return Trainer(config, plugins=plugins)
