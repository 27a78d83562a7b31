"""Generalized advantage estimation (Schulman et al., 2016)."""

from __future__ import annotations

from torch import Tensor

__all__ = ["generalized_advantages"]


def generalized_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, ends: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """The advantage of each step of a grid of (steps, environments).

    delta(t) = r(t) + gamma V(t+1) - V(t), and A(t) = delta(t) + gamma lambda A(t+1) until the episode ends.

    :param next_values: the value of what followed each step: 0 where the episode terminated, the value of the last
        observation where it was truncated, so that a truncated episode is bootstrapped.
    :param ends: where an episode ended, by termination or truncation: the next step belongs to another one.
    """
    advantages = rewards + gamma * next_values - values
    decay = gamma * gae_lambda * (~ends).to(rewards.dtype)
    # The recursion by doubling: when each sum has the terms of `reach` steps, adding the one that begins where it ends
    # gives it twice as many. A loop over the steps takes ten times as long.
    reach = 1
    while reach < len(advantages):
        advantages[:-reach] += decay[:-reach] * advantages[reach:]
        decay[:-reach] *= decay[reach:].clone()
        reach *= 2
    return advantages
