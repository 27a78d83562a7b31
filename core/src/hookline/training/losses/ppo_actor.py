"""`ppo_actor`: the clipped surrogate objective of PPO (Schulman et al., 2017), with an entropy bonus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hookline.training.losses.forwards import actions_forward
from hookline.training.losses.known_gradient import with_slopes
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
        advantages = self.of_batch(shared, "advantages").numpy()
        rows = advantages.size
        if config.normalize_advantages:
            centred = advantages - advantages.sum() / rows
            advantages = centred / (math.sqrt(centred @ centred / max(rows - 1, 1)) + 1e-8)

        new = actions_forward(shared)
        log_ratio = new.logprobs.detach().numpy() - shared.batch["logprobs"].numpy()
        ratio = np.exp(log_ratio)
        clipped = ratio.clip(1 - clip, 1 + clip)
        plain, limited = ratio * advantages, clipped * advantages
        surrogate = np.minimum(plain, limited).sum() / rows
        entropy = new.entropy.detach().numpy().sum() / rows

        # d ratio / d logprob is the ratio itself. Where the limit is the lesser of the two, nothing moves it.
        of_logprobs = torch.from_numpy(np.where(plain > limited, 0, plain) / -rows)
        of_entropy = torch.full_like(new.entropy, -config.entropy / rows)

        self.report(shared, "entropy", entropy)
        self.report(shared, "approx_kl", (ratio - log_ratio).sum() / rows - 1)
        self.report(shared, "clip_fraction", np.count_nonzero(ratio != clipped) / rows)
        loss = -(surrogate + config.entropy * entropy)
        return with_slopes(loss, rows, (new.logprobs, of_logprobs), (new.entropy, of_entropy))
