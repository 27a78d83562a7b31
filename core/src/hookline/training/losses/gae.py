"""Generalized advantage estimation (Schulman et al., 2016)."""

from __future__ import annotations

from torch import Tensor

__all__ = ["generalized_advantages"]


def generalized_advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, ends: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """The advantage of each step of a grid of (steps, environments).

    delta(t) = r(t) + gamma V(t+1) - V(t), and A(t) = delta(t) + gamma lambda A(t+1) until the episode ends.

    :param next_values: the value of the next observation. 0 where the episode terminated. A truncated episode is
        bootstrapped from the value of its last observation.
    :param ends: True where an episode terminated or was truncated. The next step belongs to another episode.
    """
    advantages = rewards + gamma * next_values - values
    decay = gamma * gae_lambda * (~ends).to(rewards.dtype)
    # The recursion, by doubling. Each entry holds the sum over `reach` steps; adding the sum that starts where it stops
    # doubles its reach. A loop over the steps takes ten times as long.
    reach = 1
    while reach < len(advantages):
        advantages[:-reach] += decay[:-reach] * advantages[reach:]
        decay[:-reach] *= decay[reach:].clone()
        reach *= 2
    return advantages
