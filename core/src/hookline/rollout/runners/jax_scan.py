"""Policy and environment inside one jitted scan: the whole rollout is one pure function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from hookline.policies import actions_jax
from hookline.policies.actions import Actions, Continuous
from hookline.policies.actor_jax import logprobs_and_values
from hookline.policies.protocol import JaxControlPolicy
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition

__all__ = ["Copies", "committed", "scan_rollout", "start_copies", "step_copies", "with_time_limit", "within_bounds"]

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
    policy: JaxControlPolicy,
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
    noise = actions_jax.noise(policy.actions, noise_key, (steps, batch))
    step_keys = jax.random.split(step_key, (steps, batch))
    fresh = jax.vmap(jax.vmap(environment.reset))(jax.random.split(reset_key, (steps, batch)))

    def step(copies: Copies, chance: tuple[Any, ...]) -> tuple[Copies, dict[str, jax.Array]]:
        noise, keys, fresh = chance
        outputs, _ = policy.jax_forward(weights, copies.obs)
        action = actions_jax.choose(policy.actions, weights, outputs, noise)
        copies, record = _advance(environment, copies, action, keys, fresh, max_episode_steps)
        return copies, {**record, "outputs": outputs}

    copies, record = jax.lax.scan(step, copies, (noise, step_keys, fresh))
    # In bulk as well: nothing in the loop depends on them.
    record |= logprobs_and_values(policy, weights, record.pop("outputs"), record, copies.obs)
    del record["final_obs"]
    return copies, record


@partial(jax.jit, static_argnames=("environment", "max_episode_steps"))
def step_copies(
    environment: JaxEnvironment,
    copies: Copies,
    action: jax.Array,
    key: jax.Array,
    step: jax.Array,
    *,
    max_episode_steps: int | None,
) -> tuple[Copies, dict[str, jax.Array]]:
    """Take one step in every copy with actions from elsewhere. Arrays are (copies,), and the `final_obs` is kept."""
    batch = copies.obs.shape[0]
    step_key, reset_key = jax.random.split(jax.random.fold_in(key, step))
    fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, batch))
    return _advance(environment, copies, action, jax.random.split(step_key, batch), fresh, max_episode_steps)


def _advance(
    environment: JaxEnvironment,
    copies: Copies,
    action: jax.Array,
    keys: jax.Array,
    fresh: tuple[Any, jax.Array],
    max_episode_steps: int | None,
) -> tuple[Copies, dict[str, jax.Array]]:
    after = jax.vmap(environment.step)(keys, copies.state, within_bounds(environment.actions, action))
    lengths = copies.lengths + 1
    after = with_time_limit(after, lengths, max_episode_steps)
    ended = after.terminated | after.truncated
    returns = copies.returns + after.reward
    record = {
        "obs": copies.obs,
        "actions": action,
        "rewards": after.reward,
        "terminated": after.terminated,
        "truncated": after.truncated,
        "final_obs": after.obs,
        "returns": returns,
        "lengths": lengths,
    }
    state, obs = _where(ended, fresh, (after.state, after.obs))
    return Copies(state, obs, jnp.where(ended, 0.0, returns), jnp.where(ended, 0, lengths)), record


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
