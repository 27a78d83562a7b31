"""`ppo_actor`: the clipped surrogate objective of PPO (Schulman et al., 2017), with an entropy bonus.

Rollouts that were made with older weights use the decoupled objective (Hilton et al., 2022). The ratio is clipped
around the policy at the start of the epoch, pi_prox, and weighted by pi_prox / pi_old, where pi_old made the rollout:

    L = min(pi_prox / pi_old, MAX_WEIGHT) min(r A, clip(r) A), r = pi / pi_prox

Without staleness, pi_prox is pi_old and this is PPO. Clipping around an older policy would leave no room to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from hookline.training.losses.loss import (
    Field,
    Loss,
    LossConfig,
    SharedLossData,
    actions_forward,
    experience_forward,
)
from hookline_hookspecs import TrainerState

__all__ = ["MAX_WEIGHT", "PPOActor", "PPOActorConfig"]

MAX_WEIGHT: Final = 2.0
"""The largest weight of a row of an older policy. It limits the variance."""


@dataclass(kw_only=True)
class PPOActorConfig(LossConfig):
    clip: float = 0.2
    """Clip the probability ratio of an action to 1 - clip .. 1 + clip."""
    anneal_clip: bool = False
    """Reduce the clip linearly, epoch by epoch, to zero at the end of the run."""
    entropy: float = 0.01
    """The weight of the entropy bonus."""
    normalize_advantages: bool = True
    """Normalize the advantages of each minibatch to mean 0 and std 1."""


class PPOActor(Loss):
    """Needs `advantages`, which `ppo_critic` computes."""

    Config = PPOActorConfig
    config: PPOActorConfig

    def get_experience_spec(self) -> Mapping[str, Field]:
        return {
            "obs": Field("float32"),
            "actions": Field(None),
            "logprobs": Field("float32", ()),
            "proximal_logprobs": Field("float32", (), computed=True, optional=True),
            "advantages": Field("float32", (), computed=True),
        }

    def run_rollout(self, shared: SharedLossData) -> None:
        experience = shared.experience
        assert experience is not None
        if experience.is_stale:
            experience.store("proximal_logprobs", experience_forward(shared).logprobs)

    def clip(self, state: TrainerState) -> float:
        """The clip in the current epoch."""
        total = state.total_epochs
        return self.config.clip * (1 - state.epoch / total if self.config.anneal_clip and total else 1)

    def run_train(self, shared: SharedLossData) -> Tensor:
        clip = self.clip(shared.state)
        advantages = self.of_batch(shared.batch, "advantages")
        if self.config.normalize_advantages:
            minibatch = shared.minibatch["advantages"]
            std = minibatch.std(correction=min(1, minibatch.numel() - 1))
            advantages = (advantages - minibatch.mean()) / (std + 1e-8)

        new = actions_forward(shared)
        old = shared.batch["logprobs"]
        proximal = shared.batch.get("proximal_logprobs", old)
        log_ratio = new.logprobs - proximal
        ratio = log_ratio.exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        if proximal is not old:
            surrogate = surrogate * (proximal - old).exp().clamp(max=MAX_WEIGHT)

        with torch.no_grad():
            self.report(shared, "entropy", new.entropy.mean())
            self.report(shared, "approx_kl", (ratio - 1 - log_ratio).mean())
            self.report(shared, "clip_fraction", ((ratio - 1).abs() > clip).float().mean())
        return -(surrogate.mean() + self.config.entropy * new.entropy.mean())
