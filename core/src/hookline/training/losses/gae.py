"""Generalized advantage estimation (Schulman et al., 2016)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["generalized_advantages"]


def generalized_advantages(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    next_values: NDArray[np.float32],
    ends: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
) -> NDArray[np.float32]:
    """The advantage of each step of a grid of (steps, copies).

    :param next_values: the value of what followed each step: 0 where the episode terminated, the value of the last
        observation where it was cut short. That is what lets a truncated episode be bootstrapped.
    :param ends: where an episode ended, by termination or truncation: what follows belongs to another one.
    """
    deltas = rewards + gamma * next_values - values
    decay = np.float32(gamma * gae_lambda) * ~ends
    # A(t) = delta(t) + decay(t) A(t + 1), by doubling: when each sum has the terms of `reach` steps, adding the one
    # that begins where it ends gives it twice as many. Step by step from the end takes ten times as long.
    advantages, reach = deltas, 1
    while reach < len(deltas):
        advantages[:-reach] += decay[:-reach] * advantages[reach:]
        decay[:-reach] *= decay[reach:].copy()
        reach *= 2
    return advantages
