"""Whole episodes in a JAX-native environment, for evaluations: played side by side, once each, from start to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hookline.policies import mlp_jax
from hookline.policies.mlp import MLPPolicy
from hookline.rollout.environments.jax_environment import JaxEnvironment
from hookline.rollout.runners.jax_scan import Copies, start_copies, with_time_limit, within_bounds

__all__ = ["Played", "play_episodes", "record_episodes"]

Weights = Mapping[str, Any]


class Played(NamedTuple):
    """How each episode came out."""

    returns: jax.Array
    lengths: jax.Array
    terminated: jax.Array
    """It ended by itself, and was not cut short."""
    ended: jax.Array


class Playing(NamedTuple):
    """Episodes between two steps. Those that have ended go on in vain, until all have."""

    copies: Copies
    terminated: jax.Array
    ended: jax.Array
    key: jax.Array
    steps: jax.Array


@partial(jax.jit, static_argnames=("environment", "policy", "episodes", "max_episode_steps", "step_limit", "greedy"))
def play_episodes(
    environment: JaxEnvironment,
    policy: MLPPolicy,
    weights: Weights,
    key: jax.Array,
    *,
    episodes: int,
    max_episode_steps: int | None,
    step_limit: int,
    greedy: bool,
) -> Played:
    """Play so many episodes until all have ended, or for `step_limit` steps."""
    step = _stepping(environment, policy, weights, episodes, max_episode_steps, greedy)
    playing = jax.lax.while_loop(
        lambda playing: ~playing.ended.all() & (playing.steps < step_limit),
        lambda playing: step(playing)[0],
        _start(environment, key, episodes),
    )
    return Played(playing.copies.returns, playing.copies.lengths, playing.terminated, playing.ended)


@partial(
    jax.jit, static_argnames=("environment", "policy", "episodes", "max_episode_steps", "steps", "greedy", "recorded")
)
def record_episodes(
    environment: JaxEnvironment,
    policy: MLPPolicy,
    weights: Weights,
    key: jax.Array,
    *,
    episodes: int,
    max_episode_steps: int | None,
    steps: int,
    greedy: bool,
    recorded: int,
) -> dict[str, jax.Array]:
    """Play the same episodes as `play_episodes` with the same arguments, and keep what happened in the first ones.

    How long they are must be known by then, since a record has a fixed size. Arrays are (steps, recorded).
    """
    step = _stepping(environment, policy, weights, episodes, max_episode_steps, greedy)

    def keep(playing: Playing, _: None) -> tuple[Playing, dict[str, jax.Array]]:
        playing, happened = step(playing)
        return playing, {name: array[:recorded] for name, array in happened.items()}

    _, record = jax.lax.scan(keep, _start(environment, key, episodes), length=steps)
    return record


def _start(environment: JaxEnvironment, key: jax.Array, episodes: int) -> Playing:
    start_key, key = jax.random.split(key)
    none = jnp.zeros(episodes, bool)
    return Playing(start_copies(environment, start_key, episodes), none, none, key, jnp.zeros((), jnp.int32))


def _stepping(
    environment: JaxEnvironment,
    policy: MLPPolicy,
    weights: Weights,
    episodes: int,
    max_episode_steps: int | None,
    greedy: bool,
) -> Callable[[Playing], tuple[Playing, dict[str, jax.Array]]]:
    def step(playing: Playing) -> tuple[Playing, dict[str, jax.Array]]:
        copies, terminated, ended, key, steps = playing
        key, noise_key, step_key = jax.random.split(key, 3)
        outputs = mlp_jax.actor(policy, weights, copies.obs)
        if greedy:
            action = mlp_jax.greedy(policy, outputs)
        else:
            action = mlp_jax.choose(policy, weights, outputs, mlp_jax.noise(policy, noise_key, (episodes,)))
        keys = jax.random.split(step_key, episodes)
        after = jax.vmap(environment.step)(keys, copies.state, within_bounds(policy.actions, action))
        lengths = copies.lengths + ~ended
        after = with_time_limit(after, lengths, max_episode_steps)
        returns = copies.returns + jnp.where(ended, 0.0, after.reward)
        happened = {"obs": copies.obs, "actions": action, "rewards": after.reward}
        terminated = jnp.where(ended, terminated, after.terminated)
        ended = ended | after.terminated | after.truncated
        return Playing(Copies(after.state, after.obs, returns, lengths), terminated, ended, key, steps + 1), happened

    return step
