"""A task of your own, in a file of your own: a pendulum that learns to swing up, from Gymnasium.

    hookline train examples/custom_task.py:pendulum --epochs 20

What `@task(...)` is given is a `TrainerConfig`; `--epochs`, `--seed` and `--run-dir` change it for one run.
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
    """PPO on Pendulum-v1. An episode counts as a success when it costs less than 200."""
    lessons = [Lesson("swing-up", "Pendulum-v1", success_above=-200.0)]
    return Trainer(config, CurriculumConfig(lessons, micro_eval_frequency=None, eval_frequency=None), plugins=plugins)
