"""`grpo`: group relative policy optimization (Shao et al., 2024), on responses in groups that share a prompt.

The ratio compares like with like. Tokens were sampled at a temperature T, so both of its log-probabilities are those of
softmax(logits / T), and before the first gradient step it is 1 for every token. Top-k and top-p are left out of both:
the set of tokens that they keep moves with the weights, and a token that falls out of it would have no gradient. That
leaves one bias: a token is drawn with its probability divided by the mass that was kept, a factor that the ratio does
not weigh. It is 1 without truncation, and at most 1 / top_p with top-p alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookline.training.losses.kl import Reference, kl_estimate
from hookline.training.losses.loss import (
    Field,
    Loss,
    LossConfig,
    SharedLossData,
    masked_mean,
    tokens_forward,
    trained_tokens,
)

if TYPE_CHECKING:
    from hookline.training.experience import Experience

__all__ = ["GRPO", "GRPOConfig", "group_advantages"]


def group_advantages(rewards: Tensor, groups: Tensor, eps: float = 1e-4) -> Tensor:
    """The reward of each response less the mean of its group, in units of the group's std.

    A reward of NaN is not applicable: it is left out of its group, and its own advantage is 0.

    :param groups: the number of each response's group, less than the number of responses.
    """
    judged = ~rewards.isnan()
    known = rewards.nan_to_num()

    def mean_of_group(values: Tensor) -> Tensor:
        sums = torch.zeros_like(known).index_add(0, groups, values * judged)
        counts = torch.zeros_like(known).index_add(0, groups, judged.to(known.dtype))
        return (sums / counts.clamp(min=1))[groups]

    centred = known - mean_of_group(known)
    std = mean_of_group(centred.square()).sqrt()
    return centred / (std + eps) * judged


@dataclass(kw_only=True)
class GRPOConfig(LossConfig):
    clip: float = 0.2
    """How far the probability of a token may move, as a share of what it was."""
    kl: float = 0.0
    """The weight of the divergence from the policy that the run began with; 0 for none."""


class GRPO(Loss):
    Config = GRPOConfig
    config: GRPOConfig

    def get_experience_spec(self) -> Mapping[str, Field]:
        return {
            "tokens": Field("int64"),
            "valid": Field("bool"),
            "loss_mask": Field("bool"),
            "logprobs": Field("float32"),
            "temperature": Field("float32", ()),
            "rewards": Field("float32", ()),
            "groups": Field("int64", ()),
            "advantages": Field("float32", (), computed=True),
        }

    def attach_policy(self, policy: Any) -> None:
        self._reference = Reference(policy) if self.config.kl else None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._reference is None else self._reference.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._reference is not None:
            self._reference.check(state, self.name)

    def run_rollout(self, shared: SharedLossData) -> None:
        experience = shared.experience
        assert experience is not None
        experience.store("advantages", group_advantages(experience["rewards"], experience["groups"]))

    def rows_to_learn_from(self, experience: Experience) -> Tensor | None:
        """Those of groups whose responses differ in reward: where all are alike, none is better than another."""
        return None if self._reference is not None else experience["advantages"] != 0

    def count(self, batch: Mapping[str, Tensor]) -> Tensor:
        return _judged_tokens(batch).sum()

    def run_train(self, shared: SharedLossData) -> Tensor:
        clip = self.config.clip
        advantages = self.of_batch(shared.batch, "advantages")[:, None]
        mask = _judged_tokens(shared.batch)
        logprobs = tokens_forward(shared, self.of_batch(shared.batch, "temperature"))
        ratio = (logprobs - shared.batch["logprobs"]).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        if self._reference is not None:
            divergence = kl_estimate(logprobs, self._reference.token_logprobs(shared.batch))
            self.report(shared, "kl", masked_mean(divergence.detach(), mask))
            loss = loss + self.config.kl * divergence
        with torch.no_grad():
            self.report(shared, "clip_fraction", masked_mean(((ratio - 1).abs() > clip).float(), mask))
        return masked_mean(loss, mask)


def _judged_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """The trained tokens of responses that have a reward: one without must not make the mean smaller."""
    return trained_tokens(batch) & ~batch["rewards"].isnan()[:, None]
