"""`gymnax:NAME`: an environment of gymnax, which is compiled with the policy into one scan."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from hookline.errors import did_you_mean
from hookline.importing import require
from hookline.rollout.environments import JaxEnvironment, Transition, actions_of
from hookline.rollout.errors import UnknownEnvironmentError

if TYPE_CHECKING:
    import jax

__all__ = ["gymnax_environment"]


@cache
def gymnax_environment(name: str) -> JaxEnvironment:
    """The environment, with flattened observations. It is cached by name, so that it compiles once."""
    gymnax = require("gymnax", f"environment 'gymnax:{name}'", "gymnax", "hookline-environments")
    import jax
    import jax.numpy as jnp

    if name not in gymnax.registered_envs:
        raise UnknownEnvironmentError(f"gymnax has no environment {name!r}{did_you_mean(name, gymnax.registered_envs)}")
    environment, parameters = gymnax.make(name)

    def flat(obs: jax.Array) -> jax.Array:
        return jnp.ravel(obs).astype(jnp.float32)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = environment.reset_env(key, parameters)
        # Some states start as Python numbers. A scan needs arrays whose dtype does not change.
        return jax.tree.map(jnp.asarray, state), flat(obs)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Transition:
        obs, after, reward, terminated, _ = environment.step_env(key, state, action, parameters)
        after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
        truncated = environment.is_truncated(after, parameters)
        return Transition(after, flat(obs), jnp.asarray(reward, jnp.float32), terminated, truncated)

    shape = environment.observation_space(parameters).shape
    actions = actions_of(f"gymnax:{name}", environment.action_space(parameters))
    return JaxEnvironment(f"gymnax:{name}", math.prod(shape), actions, reset, step)
