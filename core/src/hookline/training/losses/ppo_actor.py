"""`ppo_actor`: the clipped surrogate objective of PPO (Schulman et al., 2017), with an entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hookline.training.losses.forwards import actions_forward
from hookline.training.losses.loss import Field, Loss, LossConfig, LossTerm
from hookline.training.losses.shared import SharedLossData
from hookline.training.progress import remaining

__all__ = ["PPOActor", "PPOActorConfig"]


@dataclass(kw_only=True)
class PPOActorConfig(LossConfig):
    clip: float = 0.2
    """How far the probability of an action may move, as a share of what it was."""
    anneal_clip: bool = False
    """Narrow the clip in a straight line to zero at the end of the run."""
    entropy: float = 0.01
    """How much the policy is paid for its entropy."""
    normalize_advantages: bool = True
    """Give the advantages of each minibatch a mean of 0 and a deviation of 1."""


class PPOActor(Loss):
    """Needs `advantages`, which `ppo_critic` computes."""

    Config = PPOActorConfig
    config: PPOActorConfig

    def get_experience_spec(self) -> Mapping[str, Field]:
        return {
            "obs": Field("float32"),
            "actions": Field(None),
            "logprobs": Field("float32", ()),
            "advantages": Field("float32", (), computed=True),
        }

    def run_train(self, shared: SharedLossData) -> LossTerm:
        config = self.config
        clip = config.clip * remaining(shared.state) if config.anneal_clip else config.clip
        advantages = self.of_batch(shared, "advantages")
        if config.normalize_advantages:
            std, mean = torch.std_mean(advantages)
            advantages = (advantages - mean) / (std + 1e-8)

        new = actions_forward(shared)
        log_ratio = new.logprobs - shared.batch["logprobs"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - clip, 1 + clip)
        plain, limited = ratio * advantages, clipped * advantages
        # The lesser of the two. `torch.min` takes eight operations more to share the gradient of equals, here the same.
        surrogate = torch.where(plain < limited, plain, limited).mean()
        entropy = new.entropy.mean()

        with torch.no_grad():
            self.report(shared, "entropy", entropy.detach())
            self.report(shared, "approx_kl", (ratio - log_ratio).mean() - 1)
            self.report(shared, "clip_fraction", (ratio != clipped).mean(dtype=torch.float32))
        return LossTerm(-(surrogate + config.entropy * entropy), advantages.numel())
