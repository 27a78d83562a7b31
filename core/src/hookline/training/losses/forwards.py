"""What several losses ask of the policy. Whoever asks first has it computed, the others find it in the shared data."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from hookline.training.losses.shared import SharedLossData

__all__ = ["ActionsForward", "TokensForward", "actions_forward", "next_token_logprobs", "tokens_forward"]


class ActionsForward(NamedTuple):
    """The policy at each row of a control minibatch."""

    logprobs: Tensor
    """Of the actions that were taken."""
    entropy: Tensor
    values: Tensor


class TokensForward(NamedTuple):
    """The policy at each token but the first, (rows, length - 1)."""

    logprobs: Tensor
    mask: Tensor
    """True for the tokens that count."""


def actions_forward(shared: SharedLossData) -> ActionsForward:
    """The policy on the minibatch's observations and actions."""
    forward: ActionsForward | None = shared.get("actions_forward")
    if forward is None:
        forward = shared["actions_forward"] = ActionsForward(*_evaluate_actions(shared))
    return forward


def _evaluate_actions(shared: SharedLossData) -> tuple[Tensor, Tensor, Tensor]:
    obs, actions = shared.batch["obs"], shared.batch["actions"]
    if shared.by_hand is not None:
        evaluated, pull_back = shared.by_hand(obs, actions)
        shared.pull_backs.append(pull_back)
    else:
        evaluated = shared.policy.evaluate_actions(obs, actions)
    return evaluated


def tokens_forward(shared: SharedLossData) -> TokensForward:
    """The policy on the minibatch's tokens."""
    forward: TokensForward | None = shared.get("tokens_forward")
    if forward is None:
        logprobs = next_token_logprobs(shared.policy, shared.batch["tokens"], shared.batch["valid"])
        forward = TokensForward(logprobs, shared.batch["loss_mask"][:, 1:])
        shared["tokens_forward"] = forward
    return forward


def next_token_logprobs(policy: Any, tokens: Tensor, valid: Tensor) -> Tensor:
    """The log-probability of each token but the first, from a policy that has them, or that gives logits of tokens."""
    if hasattr(policy, "token_logprobs"):
        logprobs: Tensor = policy.token_logprobs(tokens, valid)
        return logprobs
    logits: Tensor = policy(tokens)
    return logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
