"""`ppo_critic`: the squared error of the value function, and the advantages that `ppo_actor` needs.

Rollouts that were made with older weights have values of an older critic. Their advantages are computed with the values
of the current one. Only where the next observation is not in the rollout, its recorded value is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hookline.training.losses.gae import generalized_advantages
from hookline.training.losses.loss import (
    Field,
    Loss,
    LossConfig,
    SharedLossData,
    actions_forward,
    experience_forward,
)

if TYPE_CHECKING:
    from hookline.training.experience import Experience

__all__ = ["PPOCritic", "PPOCriticConfig"]


@dataclass(kw_only=True)
class PPOCriticConfig(LossConfig):
    weight: float = 0.5
    gamma: float = 0.99
    """The discount factor of rewards."""
    gae_lambda: float = 0.95
    """The lambda of GAE. 0 looks one step ahead, 1 the whole episode."""
    clip: float | None = 0.2
    """The largest change of a value from its value in the rollout; None for no limit."""


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
        if experience.is_stale:
            self._refresh_values(shared, experience)
        advantages = generalized_advantages(
            experience["rewards"],
            experience["values"],
            experience["next_values"],
            experience["terminated"] | experience["truncated"],
            self.config.gamma,
            self.config.gae_lambda,
        )
        experience.store("advantages", advantages)
        experience.store("returns", advantages + experience["values"])

    def _refresh_values(self, shared: SharedLossData, experience: Experience) -> None:
        values, next_values = experience_forward(shared).values, experience["next_values"].clone()
        ends = experience["terminated"] | experience["truncated"]
        next_values[:-1] = torch.where(ends[:-1], next_values[:-1], values[1:])
        experience.store("values", values)
        experience.store("next_values", next_values)

    def run_train(self, shared: SharedLossData) -> Tensor:
        returns, clip = self.of_batch(shared.batch, "returns"), self.config.clip
        values = actions_forward(shared).values
        error = (values - returns).square()
        if clip is not None:
            old = shared.batch["values"]
            clipped = old + (values - old).clamp(-clip, clip)
            error = torch.max(error, (clipped - returns).square())
        return 0.5 * error.mean()
