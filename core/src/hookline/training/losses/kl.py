"""`kl`: keeps the policy near the one that the run began with.

That policy is as large as the one that is trained and never changes, so a checkpoint holds its fingerprint only:
a resumed run is given the policy that it began with, and any other is an error.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from hookline.policies.forward_torch import control_policy, text_policy
from hookline.policies.weights import fingerprint
from hookline.training.errors import ExperienceError, ReferencePolicyError
from hookline.training.losses.loss import (
    Field,
    Loss,
    LossConfig,
    SharedLossData,
    actions_forward,
    masked_mean,
    tokens_forward,
    trained_tokens,
)

__all__ = ["KL", "KLConfig", "Reference", "kl_estimate"]


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """KL(policy || reference) at each sample of the policy: unbiased, never negative, of low variance.

    It is unbiased for the distribution that the samples come from, so tokens sampled at a temperature are compared at
    that temperature on both sides.

    With r = reference / policy it is r - 1 - log r (Schulman, 2020: "k3").
    """
    log_r = reference_logprobs - logprobs
    return log_r.exp() - 1 - log_r


class Reference:
    """A frozen copy of a policy, and its log-probabilities of what the policy did."""

    def __init__(self, policy: Any) -> None:
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False)

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same weights, and for no others."""
        return fingerprint(self.policy)

    def state_dict(self) -> dict[str, Any]:
        return {"reference": self.fingerprint}

    def check(self, state: Mapping[str, Any], loss: str) -> None:
        """Raise when a run was kept near another policy than this one; one saved without the loss was near none."""
        before = state.get("reference", self.fingerprint)
        if before != self.fingerprint:
            raise ReferencePolicyError(
                f"loss {loss!r} keeps the policy near the one that the run began with, and that is not the one given "
                f"here (fingerprint {before[:8]} then, {self.fingerprint[:8]} now): to resume, "
                "give the trainer the policy and the seed of the first start; the checkpoint's weights are loaded later"
            )

    @torch.no_grad()
    def token_logprobs(self, batch: Mapping[str, Tensor]) -> Tensor:
        policy, temperature = text_policy(self.policy), batch.get("temperature")
        return policy.token_logprobs(batch["tokens"], batch["valid"], temperature)

    @torch.no_grad()
    def action_logprobs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return control_policy(self.policy).evaluate_actions(batch["obs"], batch["actions"])[0]


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
        tokens = {"tokens": Field("int64"), "valid": Field("bool"), "loss_mask": Field("bool")}
        return {**tokens, "temperature": Field("float32", (), optional=True)}

    def attach_policy(self, policy: Any) -> None:
        self._reference = Reference(policy)

    def state_dict(self) -> dict[str, Any]:
        return self._reference.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._reference.check(state, self.name)

    def count(self, batch: Mapping[str, Tensor]) -> Tensor | int:
        return super().count(batch) if self.config.of == "actions" else trained_tokens(batch).sum()

    def run_train(self, shared: SharedLossData) -> Tensor:
        if self.config.of == "actions":
            reference = self._reference.action_logprobs(shared.batch)
            return kl_estimate(actions_forward(shared).logprobs, reference).mean()
        reference = self._reference.token_logprobs(shared.batch)
        logprobs = tokens_forward(shared, shared.batch.get("temperature"))
        return masked_mean(kl_estimate(logprobs, reference), trained_tokens(shared.batch))
