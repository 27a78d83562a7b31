"""Whole episodes in a JAX-native environment, for evaluations: played side by side, once each, from start to end.

A stretch of steps is one compiled scan, which keeps what happens in the first episodes. However long episodes are, the
same scan is called again until all have ended: there is nothing to compile anew, and nothing to play twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.policies import mlp_jax
from hookline.policies.mlp import MLPPolicy
from hookline.rollout.environments.jax_environment import JaxEnvironment
from hookline.rollout.runners.jax_scan import Copies, committed, start_copies, with_time_limit, within_bounds

__all__ = ["Played", "play_episodes"]

STRETCH: Final = 128
"""Steps of one scan."""
START: Final = 2**32 - 1
"""What the states that episodes start from are drawn with; a stretch is drawn with its number."""


class Played(NamedTuple):
    """How each episode came out."""

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    """It ended by itself, and was not cut short."""
    ended: np.ndarray
    faulty_at: np.ndarray
    """The step at which a reward or an observation was not finite, -1 where all were."""
    record: dict[str, np.ndarray]
    """What happened in the first episodes, (steps, episodes) each. What is there after an end is of no account."""


class Playing(NamedTuple):
    """Episodes between two steps. Those that have ended go on in vain, until all have."""

    copies: Copies
    terminated: jax.Array
    ended: jax.Array
    faulty_at: jax.Array


def play_episodes(
    environment: JaxEnvironment,
    policy: MLPPolicy,
    weights: Mapping[str, Any],
    key: jax.Array,
    *,
    episodes: int,
    recorded: int = 0,
    max_episode_steps: int | None,
    step_limit: int,
    greedy: bool,
) -> Played:
    """Play so many episodes until all have ended, or for about `step_limit` steps.

    :param recorded: of how many to keep observations, actions and rewards.
    """
    playing = committed(_start(environment, key, episodes))
    records: list[dict[str, jax.Array]] = []
    while len(records) * STRETCH < step_limit and not np.asarray(playing.ended).all():
        playing, record = _play_on(
            environment,
            policy,
            weights,
            playing,
            key,
            np.uint32(len(records)),
            recorded=recorded,
            max_episode_steps=max_episode_steps,
            greedy=greedy,
        )
        records.append(record)
    copies, terminated, ended, faulty_at = jax.device_get(playing)
    whole = {name: np.concatenate([np.asarray(own[name]) for own in records]) for name in records[0]}
    return Played(copies.returns, copies.lengths, terminated, ended, faulty_at, whole)


@partial(jax.jit, static_argnames=("environment", "episodes"))
def _start(environment: JaxEnvironment, key: jax.Array, episodes: int) -> Playing:
    none = jnp.zeros(episodes, bool)
    copies = start_copies(environment, jax.random.fold_in(key, START), episodes)
    return Playing(copies, none, none, jnp.full(episodes, -1, jnp.int32))


@partial(jax.jit, static_argnames=("environment", "policy", "recorded", "max_episode_steps", "greedy"))
def _play_on(
    environment: JaxEnvironment,
    policy: MLPPolicy,
    weights: Mapping[str, Any],
    playing: Playing,
    key: jax.Array,
    stretch: np.uint32,
    *,
    recorded: int,
    max_episode_steps: int | None,
    greedy: bool,
) -> tuple[Playing, dict[str, jax.Array]]:
    """Take one stretch of steps; returns where it led to, and what happened in the first episodes."""
    episodes = playing.ended.shape[0]
    # In here, as all that is drawn: each call of JAX from Python costs more than the drawing.
    noise_key, step_key = jax.random.split(jax.random.fold_in(key, stretch))
    noise = None if greedy else mlp_jax.noise(policy, noise_key, (STRETCH, episodes))
    step_keys = jax.random.split(step_key, (STRETCH, episodes))

    def step(playing: Playing, chance: tuple[Any, jax.Array]) -> tuple[Playing, dict[str, jax.Array]]:
        copies, terminated, ended, faulty_at = playing
        noise, keys = chance
        outputs = mlp_jax.actor(policy, weights, copies.obs)
        action = mlp_jax.greedy(policy, outputs) if greedy else mlp_jax.choose(policy, weights, outputs, noise)
        after = jax.vmap(environment.step)(keys, copies.state, within_bounds(policy.actions, action))
        lengths = copies.lengths + ~ended
        after = with_time_limit(after, lengths, max_episode_steps)
        returns = copies.returns + jnp.where(ended, 0.0, after.reward)
        happened = {"obs": copies.obs, "actions": action, "rewards": after.reward}
        finite = jnp.isfinite(after.reward) & jnp.isfinite(copies.obs).all(axis=-1)
        faulty_at = jnp.where(finite | ended | (faulty_at >= 0), faulty_at, lengths - 1)
        terminated = jnp.where(ended, terminated, after.terminated)
        ended = ended | after.terminated | after.truncated
        played = Playing(Copies(after.state, after.obs, returns, lengths), terminated, ended, faulty_at)
        return played, {name: array[:recorded] for name, array in happened.items()}

    return jax.lax.scan(step, playing, (noise, step_keys))
