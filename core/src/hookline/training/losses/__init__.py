"""Losses. Each is a class with its experience spec, its schedule and the term it adds to the objective.

A plugin adds a loss with `register_losses`. A trainer's config then names it like any other:

    class Entropy(Loss):
        def run_train(self, shared):
            return -actions_forward(shared).entropy.mean()

    class MyPlugin:
        @hookimpl
        def register_losses(self):
            return {"entropy": Entropy}

    TrainerConfig(losses={"ppo_actor": {}, "ppo_critic": {}, "entropy": {"weight": 0.01}})
"""

from hookline.training.losses.loss import (
    Field,
    Loss,
    LossConfig,
    LossSchedule,
    LossWindow,
    SharedLossData,
    actions_forward,
    masked_mean,
    tokens_forward,
    trained_tokens,
)

__all__ = [
    "Field",
    "Loss",
    "LossConfig",
    "LossSchedule",
    "LossWindow",
    "SharedLossData",
    "actions_forward",
    "masked_mean",
    "tokens_forward",
    "trained_tokens",
]
