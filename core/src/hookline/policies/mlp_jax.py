"""The JAX forward of `MLPPolicy`, as pure functions of its weights."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from hookline.policies.mlp import MLPPolicy

__all__ = ["forward"]

Weights = Mapping[str, jax.Array]


def forward(policy: MLPPolicy, weights: Weights, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits or means, and the value, for observations of any leading shape."""
    return _perceptron(policy, weights, "actor", obs), _perceptron(policy, weights, "critic", obs)[..., 0]


def _perceptron(policy: MLPPolicy, weights: Weights, network: str, x: jax.Array) -> jax.Array:
    for layer in range(len(policy.hidden) + 1):
        x = x @ weights[f"{network}.{layer}.weight"].T + weights[f"{network}.{layer}.bias"]
        if layer < len(policy.hidden):
            x = jnp.tanh(x)
    return x
