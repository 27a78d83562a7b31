"""`ppo_critic`: the squared error of the value function, and the advantages that `ppo_actor` needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hookline.training.losses.forwards import actions_forward
from hookline.training.losses.gae import generalized_advantages
from hookline.training.losses.known_gradient import with_slopes
from hookline.training.losses.loss import Field, Loss, LossConfig, LossTerm
from hookline.training.losses.shared import SharedLossData

__all__ = ["PPOCritic", "PPOCriticConfig"]


@dataclass(kw_only=True)
class PPOCriticConfig(LossConfig):
    weight: float = 0.5
    gamma: float = 0.99
    """How much a reward is worth a step later."""
    gae_lambda: float = 0.95
    """How far advantages look ahead: 0 is one step, 1 the whole episode."""
    clip: float | None = 0.2
    """How far a value may move from what it was before its error stops counting less; None for any."""


class PPOCritic(Loss):
    Config = PPOCriticConfig
    config: PPOCriticConfig

    def get_experience_spec(self) -> Mapping[str, Field]:
        return {
            "obs": Field("float32"),
            "actions": Field(None),
            "rewards": Field("float32", ()),
            "values": Field("float32", ()),
            "next_values": Field("float32", ()),
            "terminated": Field("bool", ()),
            "truncated": Field("bool", ()),
            "advantages": Field("float32", (), computed=True),
            "returns": Field("float32", (), computed=True),
        }

    def run_rollout(self, shared: SharedLossData) -> None:
        experience = shared.experience
        assert experience is not None
        advantages = torch.from_numpy(
            generalized_advantages(
                experience["rewards"].numpy(),
                experience["values"].numpy(),
                experience["next_values"].numpy(),
                (experience["terminated"] | experience["truncated"]).numpy(),
                self.config.gamma,
                self.config.gae_lambda,
            )
        )
        experience.store("advantages", advantages)
        experience.store("returns", advantages + experience["values"])

    def run_train(self, shared: SharedLossData) -> LossTerm:
        returns, clip = self.of_batch(shared, "returns").numpy(), self.config.clip
        new = actions_forward(shared)
        values, rows = new.values.detach().numpy(), returns.size
        slope = values - returns  # of half the squared error
        error = slope**2
        if clip is not None:
            old = shared.batch["values"].numpy()
            limited = (old + (values - old).clip(-clip, clip) - returns) ** 2
            # The greater of the two counts. Where that is the limit, nothing moves it.
            slope = np.where(limited > error, 0, slope)
            error = np.maximum(error, limited)
        return with_slopes(0.5 * error.sum() / rows, rows, (new.values, torch.from_numpy(slope / rows)))
