"""`grpo`: group relative policy optimization (Shao et al., 2024). The responses to one prompt form a group.

Tokens are sampled at a temperature T, so both log-probabilities of the ratio are those of softmax(logits / T). Before
the first gradient step the ratio is 1 for every token.

Both log-probabilities ignore top-k and top-p. The set of tokens they keep changes with the weights, and a token that
leaves the set would have no gradient. This leaves a bias: sampling divides a token's probability by the kept mass, and
the ratio does not correct for that factor. It is 1 without truncation, and at most 1 / top_p with top-p alone.

Rollouts that were made with older weights use the decoupled objective, token by token, as `ppo_actor` does: the ratio
is clipped around the policy at the start of the epoch, and weighted by that policy over the one that sampled the token.
Clipped around an older policy, many tokens have no gradient from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from hookline.policies.forward_torch import text_policy
from hookline.training.losses.kl import ReferencePolicy, kl_estimate
from hookline.training.losses.loss import (
    Field,
    Loss,
    LossConfig,
    SharedLossData,
    masked_mean,
    tokens_forward,
    trained_tokens,
)
from hookline.training.losses.ppo_actor import MAX_WEIGHT

if TYPE_CHECKING:
    from hookline.training.experience import Experience

__all__ = ["GRPO", "GRPOConfig", "group_advantages"]

ROWS_AT_ONCE: Final = 256
"""How many rows of a stale experience one forward has, which limits its memory."""


def group_advantages(rewards: Tensor, groups: Tensor, eps: float = 1e-4) -> Tensor:
    """The reward of each response minus its group's mean, divided by the group's std.

    A response whose reward is NaN is left out of its group's mean and std. Its own advantage is 0.

    :param groups: the index of each response's group, less than the number of responses.
    """
    rewarded = ~rewards.isnan()
    known = rewards.nan_to_num()

    def mean_of_group(values: Tensor) -> Tensor:
        sums = torch.zeros_like(known).index_add(0, groups, values * rewarded)
        counts = torch.zeros_like(known).index_add(0, groups, rewarded.to(known.dtype))
        return (sums / counts.clamp(min=1))[groups]

    centred = known - mean_of_group(known)
    std = mean_of_group(centred.square()).sqrt()
    return centred / (std + eps) * rewarded


@dataclass(kw_only=True)
class GRPOConfig(LossConfig):
    clip: float = 0.2
    """Clip the probability ratio of a token to 1 - clip .. 1 + clip."""
    kl: float = 0.0
    """The weight of the KL divergence from the initial policy; 0 for none."""


class GRPO(Loss):
    Config = GRPOConfig
    config: GRPOConfig

    def get_experience_spec(self) -> Mapping[str, Field]:
        return {
            "tokens": Field("int64"),
            "valid": Field("bool"),
            "loss_mask": Field("bool"),
            "logprobs": Field("float32"),
            "proximal_logprobs": Field("float32", computed=True, optional=True),
            "temperature": Field("float32", (), optional=True),
            "rewards": Field("float32", ()),
            "groups": Field("int64", ()),
            "advantages": Field("float32", (), computed=True),
        }

    def attach_policy(self, policy: Any) -> None:
        self._reference = ReferencePolicy(policy) if self.config.kl else None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._reference is None else self._reference.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._reference is not None:
            self._reference.check(state, self.name)

    def run_rollout(self, shared: SharedLossData) -> None:
        experience = shared.experience
        assert experience is not None
        experience.store("advantages", group_advantages(experience["rewards"], experience["groups"]))
        if experience.is_stale:
            experience.store("proximal_logprobs", _proximal_logprobs(shared, experience))

    def rows_to_learn_from(self, experience: Experience) -> Tensor | None:
        """The rows with a nonzero advantage. A group whose rewards are all equal has no gradient."""
        return None if self._reference is not None else experience["advantages"] != 0

    def count(self, batch: Mapping[str, Tensor]) -> Tensor:
        return _rewarded_tokens(batch).sum()

    def run_train(self, shared: SharedLossData) -> Tensor:
        clip = self.config.clip
        advantages = self.of_batch(shared.batch, "advantages")[:, None]
        mask = _rewarded_tokens(shared.batch)
        logprobs = tokens_forward(shared, shared.batch.get("temperature"))
        old = shared.batch["logprobs"]
        proximal = shared.batch.get("proximal_logprobs", old)
        ratio = (logprobs - proximal).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        if proximal is not old:
            loss = loss * (proximal - old).exp().clamp(max=MAX_WEIGHT)
        if self._reference is not None:
            divergence = kl_estimate(logprobs, self._reference.token_logprobs(shared.batch))
            self.report(shared, "kl", masked_mean(divergence.detach(), mask))
            loss = loss + self.config.kl * divergence
        with torch.no_grad():
            self.report(shared, "clip_fraction", masked_mean(((ratio - 1).abs() > clip).float(), mask))
        return masked_mean(loss, mask)


def _rewarded_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """The trained tokens of responses that have a reward. The others would only make the mean smaller."""
    return trained_tokens(batch) & ~batch["rewards"].isnan()[:, None]


def _proximal_logprobs(shared: SharedLossData, experience: Experience) -> Tensor:
    """The log-probabilities of all trained tokens under the policy at the start of the epoch."""
    names = ("tokens", "valid", "loss_mask", "temperature")
    rows = {name: experience[name] for name in names if name in experience}
    parts = [
        text_policy(shared.policy).token_logprobs(
            part["tokens"], part["valid"], part.get("temperature"), trained_tokens(part)
        )
        for start in range(0, experience.rows, ROWS_AT_ONCE)
        for part in [{name: own[start : start + ROWS_AT_ONCE] for name, own in rows.items()}]
    ]
    return torch.where(trained_tokens(rows), torch.cat(parts).float(), experience["logprobs"])
