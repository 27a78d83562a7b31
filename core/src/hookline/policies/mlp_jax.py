"""The JAX forward of `MLPPolicy`, as pure functions of its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hookline.policies.actions import Discrete
from hookline.policies.mlp import MLPPolicy

__all__ = ["actor", "choose", "critic", "forward", "greedy", "log_prob", "noise"]

Weights = Mapping[str, jax.Array]


def forward(policy: MLPPolicy, weights: Weights, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits or means, and the value, for observations of any leading shape."""
    return actor(policy, weights, obs), critic(policy, weights, obs)


def actor(policy: MLPPolicy, weights: Weights, obs: jax.Array) -> jax.Array:
    return _perceptron(policy, weights, "actor", obs)


def critic(policy: MLPPolicy, weights: Weights, obs: jax.Array) -> jax.Array:
    return _perceptron(policy, weights, "critic", obs)[..., 0]


def _perceptron(policy: MLPPolicy, weights: Weights, network: str, x: jax.Array) -> jax.Array:
    for layer in range(len(policy.hidden) + 1):
        x = x @ weights[f"{network}.{layer}.weight"].T + weights[f"{network}.{layer}.bias"]
        if layer < len(policy.hidden):
            x = jnp.tanh(x)
    return x


def noise(policy: MLPPolicy, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """What `choose` needs of chance for actions of this shape. Drawn in bulk, outside of the loop over steps."""
    if isinstance(policy.actions, Discrete):
        return jax.random.gumbel(key, (*shape, policy.actions.n))
    return jax.random.normal(key, (*shape, policy.actions.size))


def choose(policy: MLPPolicy, weights: Weights, outputs: jax.Array, noise: jax.Array) -> jax.Array:
    """Sample actions from the actor's outputs."""
    if isinstance(policy.actions, Discrete):
        return jnp.argmax(outputs + noise, axis=-1)
    return outputs + jnp.exp(weights["log_std"]) * noise


def greedy(policy: MLPPolicy, outputs: jax.Array) -> jax.Array:
    """The likeliest actions."""
    return jnp.argmax(outputs, axis=-1) if isinstance(policy.actions, Discrete) else outputs


def log_prob(policy: MLPPolicy, weights: Weights, outputs: jax.Array, actions: jax.Array) -> jax.Array:
    """The log-probability (density) of actions, given the actor's outputs."""
    if isinstance(policy.actions, Discrete):
        logprobs = jax.nn.log_softmax(outputs)
        return jnp.take_along_axis(logprobs, actions[..., None], axis=-1)[..., 0]
    log_std = weights["log_std"]
    z = (actions - outputs) * jnp.exp(-log_std)
    return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
