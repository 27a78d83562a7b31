"""`JaxEnvironment`: an environment as two pure functions, which the rollout vectorises and scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hookline.errors import did_you_mean
from hookline.extras import require
from hookline.policies.actions import Actions
from hookline.rollout.environments.gymnasium_env import actions_of
from hookline.rollout.errors import UnknownEnvironmentError

__all__ = ["JaxEnvironment", "Transition", "gymnax_environment", "gymnax_names"]


class Transition(NamedTuple):
    """The result of one step. The state and observation are those before any reset."""

    state: Any
    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    """The episode is over, and the value after it is zero."""
    truncated: jax.Array
    """The episode was cut short, and the value after it is bootstrapped."""


@dataclass(frozen=True)
class JaxEnvironment:
    """An environment as pure functions. Equal environments share one compilation in `jit`."""

    name: str
    observation_size: int
    actions: Actions
    reset: Callable[[jax.Array], tuple[Any, jax.Array]]
    """Takes an rng key. Returns a state (any pytree of arrays) and its observation, a vector."""
    step: Callable[[jax.Array, Any, jax.Array], Transition]
    """Takes an rng key, a state and an action."""


def gymnax_names() -> list[str]:
    """The names in gymnax's registry."""
    return list(require("gymnax", "a gymnax environment").registered_envs)


@cache
def gymnax_environment(name: str) -> JaxEnvironment:
    """The environment, with flattened observations. It is cached by name, so that it compiles once."""
    gymnax = require("gymnax", f"environment {name!r}")
    if name not in gymnax.registered_envs:
        raise UnknownEnvironmentError(f"gymnax has no environment {name!r}{did_you_mean(name, gymnax.registered_envs)}")
    environment, parameters = gymnax.make(name)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = environment.reset_env(key, parameters)
        # Some states start as Python numbers. A scan needs arrays whose dtype does not change.
        return jax.tree.map(jnp.asarray, state), _flat(obs)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Transition:
        obs, after, reward, terminated, _ = environment.step_env(key, state, action, parameters)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        truncated = environment.is_truncated(after, parameters)
        return Transition(after, _flat(obs), jnp.asarray(reward, jnp.float32), terminated, truncated)

    shape = environment.observation_space(parameters).shape
    actions = actions_of(f"gymnax:{name}", environment.action_space(parameters))
    return JaxEnvironment(f"gymnax:{name}", math.prod(shape), actions, reset, step)


def _flat(obs: jax.Array) -> jax.Array:
    return jnp.ravel(obs).astype(jnp.float32)
