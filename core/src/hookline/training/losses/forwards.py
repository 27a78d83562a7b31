"""The policy's forward pass on a minibatch. The first loss that asks computes it, the others share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from hookline.training.losses.shared import SharedLossData

__all__ = ["ActionsForward", "actions_forward", "next_token_logprobs", "tokens_forward", "trained_tokens"]


class ActionsForward(NamedTuple):
    """The policy at each row of a control minibatch."""

    logprobs: Tensor
    """Of the actions that were taken."""
    entropy: Tensor
    values: Tensor


def actions_forward(shared: SharedLossData) -> ActionsForward:
    """The policy on the minibatch's observations and actions."""
    forward: ActionsForward | None = shared.get("actions_forward")
    if forward is None:
        evaluated = shared.policy.evaluate_actions(shared.batch["obs"], shared.batch["actions"])
        forward = shared["actions_forward"] = ActionsForward(*evaluated)
    return forward


def tokens_forward(shared: SharedLossData) -> Tensor:
    """The log-probability of each of the minibatch's tokens but the first, (rows, length - 1)."""
    logprobs: Tensor | None = shared.get("tokens_forward")
    if logprobs is None:
        logprobs = next_token_logprobs(shared.policy, shared.batch["tokens"], shared.batch["valid"])
        shared["tokens_forward"] = logprobs
    return logprobs


def trained_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """True for the tokens, all but the first, that are trained on."""
    return batch["loss_mask"][:, 1:]


def next_token_logprobs(policy: Any, tokens: Tensor, valid: Tensor) -> Tensor:
    """The log-probability of each token but the first, from a policy that has them, or that gives logits of tokens."""
    if hasattr(policy, "token_logprobs"):
        logprobs: Tensor = policy.token_logprobs(tokens, valid)
        return logprobs
    logits: Tensor = policy(tokens)
    return logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
