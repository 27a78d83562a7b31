"""Gymnasium environments: lookup by id, and conversion of their spaces, observations and actions for a policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hookline.errors import did_you_mean
from hookline.extras import require
from hookline.policies.actions import Actions, Continuous, Discrete
from hookline.rollout.environments.outcomes import checked_cell, checked_observation
from hookline.rollout.errors import UnknownEnvironmentError, UnsupportedSpaceError

if TYPE_CHECKING:
    import gymnasium

__all__ = ["actions_of", "actor_of", "factory_of", "gymnasium_names", "observation_size_of", "observer_of"]

Factory = Callable[[], "gymnasium.Env[Any, Any]"]


def gymnasium_names() -> list[str]:
    """The ids in Gymnasium's registry."""
    gymnasium = require("gymnasium", "a Gymnasium environment")
    return list(gymnasium.registry)


def factory_of(environment_id: str) -> Factory:
    """A function that creates the environment with this id. An unregistered id raises at once."""
    gymnasium = require("gymnasium", f"environment {environment_id!r}")
    try:
        gymnasium.spec(environment_id)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        nearest = did_you_mean(environment_id, gymnasium.registry)
        raise UnknownEnvironmentError(f"Gymnasium has no environment {environment_id!r}{nearest}: {error}") from error
    return lambda: gymnasium.make(environment_id)


def observation_size_of(name: str, space: Any) -> int:
    """The length of the policy's observation vector."""
    spaces = require("gymnasium", f"environment {name!r}").spaces
    if isinstance(space, spaces.Box):
        return math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    raise UnsupportedSpaceError(
        f"environment {name!r} has the observation space {space!r}: Box and Discrete are supported, "
        "so flatten it with gymnasium.wrappers.FlattenObservation in a factory"
    )


def actions_of(name: str, space: Any) -> Actions:
    """The policy's actions for an action space of Gymnasium or gymnax."""
    kinds = [cls.__name__ for cls in type(space).__mro__]
    if "Discrete" in kinds:
        return Discrete(int(space.n))
    if "Box" in kinds and len(space.shape) == 1:
        low, high = (np.broadcast_to(bound, space.shape).tolist() for bound in (space.low, space.high))
        return Continuous(space.shape[0], tuple(low), tuple(high))
    raise UnsupportedSpaceError(
        f"environment {name!r} has the action space {space!r}: Discrete and one-dimensional Box are supported, "
        "so map it to one of them with gymnasium.wrappers.TransformAction in a factory"
    )


def observer_of(space: Any) -> Callable[[Any, Callable[[], str]], np.ndarray]:
    """A function from an observation to the policy's vector: a flattened Box, or a one-hot vector.

    Its second argument is the `where` of `hookline.rollout.environments.outcomes`, for errors.
    """
    if not hasattr(space, "n"):
        shape = tuple(space.shape)
        return lambda obs, where: checked_observation(obs, shape, where).astype(np.float32).reshape(-1)
    count, start = int(space.n), int(space.start)
    rows = np.eye(count, dtype=np.float32)
    return lambda obs, where: rows[checked_cell(obs, start, count, where)]


def actor_of(space: Any) -> Callable[[np.ndarray], Any]:
    """A function from a policy's action to the environment's action, clipped to its bounds."""
    if hasattr(space, "n"):
        start = int(space.start)
        return lambda action: int(action) + start
    low, high, dtype = space.low, space.high, space.dtype
    return lambda action: np.minimum(np.maximum(action, low), high).astype(dtype)
