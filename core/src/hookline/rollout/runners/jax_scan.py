"""Runs policy and environments in one jitted scan. The whole rollout is one pure function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from hookline.policies import actor_jax
from hookline.policies.actor_jax import logprobs_and_values
from hookline.policies.protocol import Actions, Continuous, JaxControlPolicy
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition

__all__ = [
    "EnvStates",
    "committed",
    "scan_rollout",
    "start_environments",
    "step_environments",
    "with_time_limit",
    "within_bounds",
]

Weights = Mapping[str, Any]
T = TypeVar("T")


class EnvStates(NamedTuple):
    """The states of parallel environments between two steps."""

    state: Any
    obs: jax.Array
    returns: jax.Array
    lengths: jax.Array


@partial(jax.jit, static_argnames=("environment", "count"))
def start_environments(environment: JaxEnvironment, key: jax.Array, count: int) -> EnvStates:
    """`count` environments at the start of an episode."""
    state, obs = jax.vmap(environment.reset)(jax.random.split(key, count))
    return EnvStates(state, obs, jnp.zeros(count), jnp.zeros(count, jnp.int32))


def committed(tree: T) -> T:
    """Commit arrays to the device of the weights, as the outputs of a scan are. Otherwise jit would compile twice."""
    placed: T = jax.device_put(tree, jax.devices()[0])
    return placed


@partial(jax.jit, static_argnames=("environment", "policy", "steps", "max_episode_steps"))
def scan_rollout(
    environment: JaxEnvironment,
    policy: JaxControlPolicy,
    weights: Weights,
    envs: EnvStates,
    key: jax.Array,
    *,
    steps: int,
    max_episode_steps: int | None,
) -> tuple[EnvStates, dict[str, jax.Array]]:
    """Take `steps` steps in every environment, and reset those that end. Arrays are (steps, environments)."""
    batch = envs.obs.shape[0]
    noise_key, step_key, reset_key = jax.random.split(key, 3)
    # All random numbers are drawn in bulk, including the initial states of new episodes. Drawing a few at a time in the
    # loop would take longer than policy and environment together.
    noise = actor_jax.noise(policy.actions, noise_key, (steps, batch))
    step_keys = jax.random.split(step_key, (steps, batch))
    fresh = jax.vmap(jax.vmap(environment.reset))(jax.random.split(reset_key, (steps, batch)))

    def step(envs: EnvStates, drawn: tuple[Any, ...]) -> tuple[EnvStates, dict[str, jax.Array]]:
        noise, keys, fresh = drawn
        outputs, _ = policy.jax_forward(weights, envs.obs)
        action = actor_jax.choose(policy.actions, weights, outputs, noise)
        envs, record = _advance(environment, envs, action, keys, fresh, max_episode_steps)
        return envs, {**record, "outputs": outputs}

    envs, record = jax.lax.scan(step, envs, (noise, step_keys, fresh))
    # Computed in bulk too, since nothing in the loop depends on them.
    record |= logprobs_and_values(policy, weights, record.pop("outputs"), record, envs.obs)
    del record["final_obs"]
    return envs, record


@partial(jax.jit, static_argnames=("environment", "max_episode_steps"))
def step_environments(
    environment: JaxEnvironment,
    envs: EnvStates,
    action: jax.Array,
    key: jax.Array,
    step: jax.Array,
    *,
    max_episode_steps: int | None,
) -> tuple[EnvStates, dict[str, jax.Array]]:
    """Take one step in every environment with the given actions. Arrays are (environments,), with `final_obs`."""
    batch = envs.obs.shape[0]
    step_key, reset_key = jax.random.split(jax.random.fold_in(key, step))
    fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, batch))
    return _advance(environment, envs, action, jax.random.split(step_key, batch), fresh, max_episode_steps)


def _advance(
    environment: JaxEnvironment,
    envs: EnvStates,
    action: jax.Array,
    keys: jax.Array,
    fresh: tuple[Any, jax.Array],
    max_episode_steps: int | None,
) -> tuple[EnvStates, dict[str, jax.Array]]:
    after = jax.vmap(environment.step)(keys, envs.state, within_bounds(environment.actions, action))
    lengths = envs.lengths + 1
    after = with_time_limit(after, lengths, max_episode_steps)
    ended = after.terminated | after.truncated
    returns = envs.returns + after.reward
    record = {
        "obs": envs.obs,
        "actions": action,
        "rewards": after.reward,
        "terminated": after.terminated,
        "truncated": after.truncated,
        "final_obs": after.obs,
        "returns": returns,
        "lengths": lengths,
    }
    state, obs = _where(ended, fresh, (after.state, after.obs))
    return EnvStates(state, obs, jnp.where(ended, 0.0, returns), jnp.where(ended, 0, lengths)), record


def within_bounds(actions: Actions, action: jax.Array) -> jax.Array:
    """Clip actions to the environment's bounds."""
    if isinstance(actions, Continuous) and actions.low is not None and actions.high is not None:
        return jnp.clip(action, jnp.asarray(actions.low), jnp.asarray(actions.high))
    return action


def with_time_limit(after: Transition, lengths: jax.Array, limit: int | None) -> Transition:
    """Truncate episodes of `limit` steps."""
    return after if limit is None else after._replace(truncated=after.truncated | (lengths >= limit))


def _where(condition: jax.Array, one: Any, other: Any) -> Any:
    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(select, one, other)
