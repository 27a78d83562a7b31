"""A task of your own in a Python file: PPO on Gymnasium's Pendulum-v1.

    hookline train examples/custom_task.py:pendulum --epochs 20

The arguments of `@task(...)` are those of `TrainerConfig`. `--epochs`, `--seed` and `--run-dir` override them.
Gymnasium's environments are those of the plugin hookline-environments.
"""

from hookline import PluginManager
from hookline.rollout import CurriculumConfig, Lesson
from hookline.training import OptimizerConfig, RolloutConfig, Trainer, TrainerConfig, task


@task(
    epochs=200,
    losses={"ppo_actor": {"entropy": 0.0}, "ppo_critic": {"gamma": 0.9, "gae_lambda": 0.95}},
    optimizer=OptimizerConfig(learning_rate=1e-3),
    rollout=RolloutConfig(num_environments=8, steps_per_rollout=200, minibatches=8, update_epochs=5),
)
def pendulum(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """PPO on Pendulum-v1. An episode is a success if its return is above -200."""
    lessons = [Lesson("swing-up", "gymnasium:Pendulum-v1", success_above=-200.0)]
    return Trainer(config, CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None), plugins=plugins)
