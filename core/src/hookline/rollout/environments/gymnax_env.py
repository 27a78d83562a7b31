"""gymnax environments by name. They need that package."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from hookline.errors import did_you_mean
from hookline.extras import require
from hookline.policies.actions import Actions, Continuous, Discrete
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition
from hookline.rollout.errors import UnknownEnvironmentError, UnsupportedSpaceError

__all__ = ["gymnax_environment", "gymnax_names"]


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
    actions = _actions(name, environment.action_space(parameters))
    return JaxEnvironment(f"gymnax:{name}", math.prod(shape), actions, reset, step)


def _flat(obs: jax.Array) -> jax.Array:
    return jnp.ravel(obs).astype(jnp.float32)


def _actions(name: str, space: Any) -> Actions:
    if type(space).__name__ == "Discrete":
        return Discrete(int(space.n))
    if type(space).__name__ == "Box" and len(space.shape) == 1:
        low, high = (jnp.broadcast_to(jnp.asarray(bound), space.shape).tolist() for bound in (space.low, space.high))
        return Continuous(space.shape[0], tuple(low), tuple(high))
    raise UnsupportedSpaceError(
        f"environment 'gymnax:{name}' has the action space {space!r}: Discrete and one-dimensional Box are supported"
    )
