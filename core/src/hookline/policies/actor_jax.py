"""`JaxActor`: plays a specification with its JAX forward. And actions sampled from the outputs of a forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hookline.policies.protocol import (
    Actions,
    Discrete,
    JaxControlPolicy,
    PolicyError,
    PolicySpecification,
    missing_methods,
    outputs_for,
)
from hookline.policies.weights import check_weights, to_jax

__all__ = ["JaxActor", "choose", "greedy", "log_prob", "logprobs_and_values", "next_values_of", "noise"]

Weights = Mapping[str, jax.Array]


class JaxActor:
    """Plays a specification step by step.

    Rollouts of JAX-native environments and of text do not call these methods. They compile the specification's own
    functions.
    """

    def __init__(self, policy: PolicySpecification) -> None:
        self.policy: Any = policy
        self.jax_policy = self.policy

    def check(self, lesson: str, observation_size: int, actions: Actions) -> None:
        policy, name = self.policy, type(self.policy).__name__
        missing = missing_methods(policy, JaxControlPolicy)
        if missing:
            raise PolicyError(
                f"{lesson} needs a policy with {missing[0]}(weights, obs), and {name} has none: use an MLPPolicy, "
                "or pass the trainer a torch module whose forward(obs) returns (logits, value)"
            )
        if policy.observation_size != observation_size:
            raise PolicyError(
                f"{lesson} has observations of size {observation_size}, and the {name} takes "
                f"{policy.observation_size}: create it with observation_size={observation_size}"
            )
        if type(policy.actions) is not type(actions) or outputs_for(policy.actions) != outputs_for(actions):
            raise PolicyError(
                f"{lesson} has the actions {actions}, and the {name} has {policy.actions}: create it with these"
            )

    def initial_weights(self, seed: int) -> Weights:
        return to_jax(self.policy.initial_weights(seed))

    def load_weights(self, weights: Mapping[str, Any]) -> Weights:
        check_weights(weights, self.policy.shapes())
        return to_jax(weights)

    def playing(self, weights: Weights, seed: Sequence[int] | None) -> Callable[[np.ndarray], np.ndarray]:
        key = None if seed is None else jax.random.wrap_key_data(jnp.asarray(seed, jnp.uint32))
        steps = count()
        return lambda obs: np.asarray(_act(self.policy, weights, obs, key, np.uint32(next(steps))))

    def logprobs_and_values(
        self, weights: Weights, arrays: Mapping[str, np.ndarray], last_obs: np.ndarray
    ) -> dict[str, np.ndarray]:
        found = _logprobs_and_values(self.policy, weights, dict(arrays), last_obs)
        return {name: np.array(array) for name, array in found.items()}


@partial(jax.jit, static_argnames="policy")
def _act(
    policy: JaxControlPolicy, weights: Weights, obs: jax.Array, key: jax.Array | None, step: jax.Array
) -> jax.Array:
    outputs, _ = policy.jax_forward(weights, obs)
    if key is None:
        return greedy(policy.actions, outputs)
    drawn = noise(policy.actions, jax.random.fold_in(key, step), obs.shape[:1])
    return choose(policy.actions, weights, outputs, drawn)


@partial(jax.jit, static_argnames="policy")
def _logprobs_and_values(
    policy: JaxControlPolicy, weights: Weights, arrays: Mapping[str, jax.Array], last_obs: jax.Array
) -> dict[str, jax.Array]:
    outputs, _ = policy.jax_forward(weights, arrays["obs"])
    return logprobs_and_values(policy, weights, outputs, arrays, last_obs)


def logprobs_and_values(
    policy: JaxControlPolicy,
    weights: Weights,
    outputs: jax.Array,
    arrays: Mapping[str, jax.Array],
    last_obs: jax.Array,
) -> dict[str, jax.Array]:
    """As `Actor.logprobs_and_values`, given the logits or means of each step.

    The forward below is for the values. jit drops the part of it that computes the logits.
    """
    _, values = policy.jax_forward(weights, jnp.concatenate([arrays["obs"], last_obs[None]]))
    return {
        "logprobs": log_prob(policy.actions, weights, outputs, arrays["actions"]),
        "values": values[:-1],
        "next_values": next_values_of(
            policy, weights, values[1:], arrays["final_obs"], arrays["terminated"], arrays["truncated"]
        ),
    }


def next_values_of(
    policy: JaxControlPolicy,
    weights: Weights,
    following: jax.Array,
    final_obs: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
) -> jax.Array:
    """The value after each step: zero after termination, the value of `final_obs` after truncation.

    :param following: the value of the next observation. At an episode's end it belongs to a new episode.
    """
    # Truncation is rare. Most rollouts need no second pass of the critic.
    of_final_obs = jax.lax.cond(
        (truncated & ~terminated).any(),
        lambda: policy.jax_forward(weights, final_obs)[1],
        lambda: jnp.zeros(following.shape, following.dtype),
    )
    return jnp.where(terminated, 0.0, jnp.where(truncated, of_final_obs, following))


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
