"""`kl`: keeps the policy near the one that the run began with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hookline.training.errors import ExperienceError
from hookline.training.losses.forwards import actions_forward, next_token_logprobs, tokens_forward
from hookline.training.losses.loss import Field, Loss, LossConfig, LossTerm
from hookline.training.losses.shared import SharedLossData

__all__ = ["KL", "KLConfig", "Reference", "kl_estimate"]


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """KL(policy || reference) at each sample of the policy: unbiased, never negative, of low variance.

    With r = reference / policy it is r - 1 - log r (Schulman, 2020: "k3").
    """
    log_r = reference_logprobs - logprobs
    return log_r.exp() - 1 - log_r


class Reference:
    """A frozen copy of a policy, and its log-probabilities of what the policy did."""

    def __init__(self, policy: Any) -> None:
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False)

    @torch.no_grad()
    def token_logprobs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return next_token_logprobs(self.policy, batch["tokens"], batch["valid"])

    @torch.no_grad()
    def action_logprobs(self, batch: Mapping[str, Tensor]) -> Tensor:
        logprobs: Tensor = self.policy.evaluate_actions(batch["obs"], batch["actions"])[0]
        return logprobs


@dataclass(kw_only=True)
class KLConfig(LossConfig):
    weight: float = 0.05
    of: Literal["tokens", "actions"] = "tokens"
    """What the policy chooses."""

    def __post_init__(self) -> None:
        if self.of not in ("tokens", "actions"):
            raise ExperienceError(f"loss 'kl': `of` must be 'tokens' or 'actions', not {self.of!r}")


class KL(Loss):
    """The reference is the policy as it was handed to the trainer, also in a run that is resumed."""

    Config = KLConfig
    config: KLConfig

    def get_experience_spec(self) -> Mapping[str, Field]:
        if self.config.of == "actions":
            return {"obs": Field("float32"), "actions": Field(None)}
        return {"tokens": Field("int64"), "valid": Field("bool"), "loss_mask": Field("bool")}

    def attach_policy(self, policy: Any) -> None:
        self._reference = Reference(policy)

    def run_train(self, shared: SharedLossData) -> LossTerm:
        if self.config.of == "actions":
            reference = self._reference.action_logprobs(shared.batch)
            return self.mean(kl_estimate(actions_forward(shared).logprobs, reference))
        new = tokens_forward(shared)
        return self.mean(kl_estimate(new.logprobs, self._reference.token_logprobs(shared.batch)), new.mask)
