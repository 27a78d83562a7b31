"""Sampling actions from a policy's outputs in JAX, and their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hookline.policies.actions import Actions, Discrete

__all__ = ["choose", "greedy", "log_prob", "noise"]

Weights = Mapping[str, jax.Array]


def noise(actions: Actions, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The random numbers that `choose` needs for actions of this shape. A scan draws all of them in advance."""
    if isinstance(actions, Discrete):
        return jax.random.gumbel(key, (*shape, actions.n))
    return jax.random.normal(key, (*shape, actions.size))


def choose(actions: Actions, weights: Weights, outputs: jax.Array, noise: jax.Array) -> jax.Array:
    """Sample actions, given logits or means."""
    if isinstance(actions, Discrete):
        return jnp.argmax(outputs + noise, axis=-1)
    return outputs + jnp.exp(weights["log_std"]) * noise


def greedy(actions: Actions, outputs: jax.Array) -> jax.Array:
    """The likeliest actions."""
    return jnp.argmax(outputs, axis=-1) if isinstance(actions, Discrete) else outputs


def log_prob(actions: Actions, weights: Weights, outputs: jax.Array, taken: jax.Array) -> jax.Array:
    """The log-probability (density) of the actions taken, given logits or means."""
    if isinstance(actions, Discrete):
        logprobs = jax.nn.log_softmax(outputs)
        return jnp.take_along_axis(logprobs, taken[..., None], axis=-1)[..., 0]
    log_std = weights["log_std"]
    z = (taken - outputs) * jnp.exp(-log_std)
    return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
