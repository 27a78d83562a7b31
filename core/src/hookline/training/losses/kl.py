"""`kl`: penalizes the KL divergence of the policy from the initial policy, which is the reference.

The reference is as large as the policy and never changes, so a checkpoint stores only its fingerprint. A resumed run
must be built with the same initial policy; another one is an error.
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

__all__ = ["KL", "KLConfig", "ReferencePolicy", "kl_estimate"]


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """An unbiased, non-negative, low-variance estimate of KL(policy || reference) at each sample of the policy.

    With r = reference / policy it is r - 1 - log r (Schulman, 2020: "k3").

    It is unbiased only for the distribution the samples come from. For tokens sampled at a temperature, both
    log-probabilities must be at that temperature.
    """
    log_r = reference_logprobs - logprobs
    return log_r.exp() - 1 - log_r


class ReferencePolicy:
    """A frozen copy of a policy, and its log-probabilities of the sampled tokens or actions."""

    def __init__(self, policy: Any) -> None:
        # What is never trained, such as the base of adapters, needs no copy.
        shared = {id(own): own for own in policy.parameters() if not own.requires_grad}
        self.policy = copy.deepcopy(policy, shared).eval().requires_grad_(False)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights."""
        return fingerprint(self.policy)

    def state_dict(self) -> dict[str, Any]:
        return {"reference": self.fingerprint}

    def check(self, state: Mapping[str, Any], loss: str) -> None:
        """Raise when the run was saved with another reference. A run saved without this loss has none to compare."""
        before = state.get("reference", self.fingerprint)
        if before != self.fingerprint:
            raise ReferencePolicyError(
                f"loss {loss!r}: the initial policy differs from the one that the run began with (fingerprint "
                f"{before[:8]} then, {self.fingerprint[:8]} now). To resume, build the trainer with the policy and "
                "the seed of the first start; the checkpoint's weights are loaded later"
            )

    @torch.no_grad()
    def token_logprobs(self, batch: Mapping[str, Tensor]) -> Tensor:
        policy, temperature = text_policy(self.policy), batch.get("temperature")
        return policy.token_logprobs(batch["tokens"], batch["valid"], temperature, trained_tokens(batch))

    @torch.no_grad()
    def action_logprobs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return control_policy(self.policy).evaluate_actions(batch["obs"], batch["actions"])[0]


@dataclass(kw_only=True)
class KLConfig(LossConfig):
    weight: float = 0.05
    of: Literal["tokens", "actions"] = "tokens"
    """Whether the policy samples tokens (text) or actions (control)."""

    def __post_init__(self) -> None:
        if self.of not in ("tokens", "actions"):
            raise ExperienceError(f"loss 'kl': `of` must be 'tokens' or 'actions', not {self.of!r}")


class KL(Loss):
    """The reference is the policy as it was passed to the trainer, also in a resumed run."""

    Config = KLConfig
    config: KLConfig

    def get_experience_spec(self) -> Mapping[str, Field]:
        if self.config.of == "actions":
            return {"obs": Field("float32"), "actions": Field(None)}
        tokens = {"tokens": Field("int64"), "valid": Field("bool"), "loss_mask": Field("bool")}
        return {**tokens, "temperature": Field("float32", (), optional=True)}

    def attach_policy(self, policy: Any) -> None:
        self._reference = ReferencePolicy(policy)

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
