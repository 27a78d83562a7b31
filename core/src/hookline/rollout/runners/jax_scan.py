"""Policy and environment inside one jitted scan: the whole rollout is one pure function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from hookline.policies import mlp_jax
from hookline.policies.actions import Actions, Continuous
from hookline.policies.mlp import MLPPolicy
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition

__all__ = ["Copies", "committed", "next_values_of", "scan_rollout", "start_copies", "with_time_limit", "within_bounds"]

Weights = Mapping[str, Any]
T = TypeVar("T")


class Copies(NamedTuple):
    """Copies of an environment between two steps."""

    state: Any
    obs: jax.Array
    returns: jax.Array
    lengths: jax.Array


@partial(jax.jit, static_argnames=("environment", "copies"))
def start_copies(environment: JaxEnvironment, key: jax.Array, copies: int) -> Copies:
    """Fresh copies at the start of an episode."""
    state, obs = jax.vmap(environment.reset)(jax.random.split(key, copies))
    return Copies(state, obs, jnp.zeros(copies), jnp.zeros(copies, jnp.int32))


def committed(tree: T) -> T:
    """Arrays committed to the device of the weights, as a scan leaves them: it is compiled once for both."""
    placed: T = jax.device_put(tree, jax.devices()[0])
    return placed


@partial(jax.jit, static_argnames=("environment", "policy", "steps", "max_episode_steps"))
def scan_rollout(
    environment: JaxEnvironment,
    policy: MLPPolicy,
    weights: Weights,
    copies: Copies,
    key: jax.Array,
    *,
    steps: int,
    max_episode_steps: int | None,
) -> tuple[Copies, dict[str, jax.Array]]:
    """Take `steps` steps in every copy; an episode that ends is followed by a new one. Arrays are (steps, copies)."""
    batch = copies.obs.shape[0]
    noise_key, step_key, reset_key = jax.random.split(key, 3)
    # All chance is drawn in bulk, and with it the states that episodes may start from: in the loop, on a few numbers
    # at a time, a counter-based generator takes longer than policy and environment together.
    noise = mlp_jax.noise(policy, noise_key, (steps, batch))
    step_keys = jax.random.split(step_key, (steps, batch))
    fresh = jax.vmap(jax.vmap(environment.reset))(jax.random.split(reset_key, (steps, batch)))

    def step(copies: Copies, chance: tuple[Any, ...]) -> tuple[Copies, dict[str, jax.Array]]:
        noise, keys, (fresh_state, fresh_obs) = chance
        outputs = mlp_jax.actor(policy, weights, copies.obs)
        action = mlp_jax.choose(policy, weights, outputs, noise)
        after = jax.vmap(environment.step)(keys, copies.state, within_bounds(policy.actions, action))
        lengths = copies.lengths + 1
        after = with_time_limit(after, lengths, max_episode_steps)
        ended = after.terminated | after.truncated
        returns = copies.returns + after.reward
        record = {
            "obs": copies.obs,
            "actions": action,
            "outputs": outputs,
            "rewards": after.reward,
            "terminated": after.terminated,
            "truncated": after.truncated,
            "final_obs": after.obs,
            "returns": returns,
            "lengths": lengths,
        }
        state, obs = _where(ended, (fresh_state, fresh_obs), (after.state, after.obs))
        return Copies(state, obs, jnp.where(ended, 0.0, returns), jnp.where(ended, 0, lengths)), record

    copies, record = jax.lax.scan(step, copies, (noise, step_keys, fresh))
    outputs, final_obs = record.pop("outputs"), record.pop("final_obs")
    # In bulk as well: nothing in the loop depends on them.
    record["logprobs"] = mlp_jax.log_prob(policy, weights, outputs, record["actions"])
    values = mlp_jax.critic(policy, weights, jnp.concatenate([record["obs"], copies.obs[None]]))
    record["values"] = values[:-1]
    record["next_values"] = next_values_of(
        policy, weights, values[1:], final_obs, record["terminated"], record["truncated"]
    )
    return copies, record


def next_values_of(
    policy: MLPPolicy,
    weights: Weights,
    following: jax.Array,
    final_obs: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
) -> jax.Array:
    """The value of what follows each step: zero after an end, and after a cut the value of where it was cut.

    :param following: the value of the observation that came next, which after an end or a cut is a new episode's.
    """
    # Cuts are rare, and most rollouts need no second pass of the critic.
    of_final_obs = jax.lax.cond(
        (truncated & ~terminated).any(),
        lambda: mlp_jax.critic(policy, weights, final_obs),
        lambda: jnp.zeros(following.shape, following.dtype),
    )
    return jnp.where(terminated, 0.0, jnp.where(truncated, of_final_obs, following))


def within_bounds(actions: Actions, action: jax.Array) -> jax.Array:
    """Actions as an environment may see them."""
    if isinstance(actions, Continuous) and actions.low is not None and actions.high is not None:
        return jnp.clip(action, jnp.asarray(actions.low), jnp.asarray(actions.high))
    return action


def with_time_limit(after: Transition, lengths: jax.Array, limit: int | None) -> Transition:
    """The transition, with episodes of so many steps cut short."""
    return after if limit is None else after._replace(truncated=after.truncated | (lengths >= limit))


def _where(condition: jax.Array, one: Any, other: Any) -> Any:
    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(select, one, other)
