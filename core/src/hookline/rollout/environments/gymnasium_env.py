"""Gymnasium environments: conversion of their spaces, observations and actions for a policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hookline.policies.protocol import Actions, Continuous, Discrete
from hookline.rollout.environments.outcomes import checked_cell, checked_observation
from hookline.rollout.errors import UnsupportedSpaceError

if TYPE_CHECKING:
    import gymnasium

__all__ = ["Factory", "actions_of", "actor_of", "observation_size_of", "observer_of"]

Factory = Callable[[], "gymnasium.Env[Any, Any]"]


def observation_size_of(name: str, space: Any) -> int:
    """The length of the policy's observation vector."""
    kinds = _kinds(space)
    if "Box" in kinds:
        return math.prod(space.shape)
    if "Discrete" in kinds:
        return int(space.n)
    raise UnsupportedSpaceError(
        f"environment {name!r} has the observation space {space!r}: Box and Discrete are supported, "
        "so flatten it with gymnasium.wrappers.FlattenObservation in a factory"
    )


def actions_of(name: str, space: Any) -> Actions:
    """The policy's actions for an action space, of Gymnasium or of a library with the same classes."""
    kinds = _kinds(space)
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


def _kinds(space: Any) -> list[str]:
    """The names of a space's classes, so that Gymnasium itself need not be imported."""
    return [cls.__name__ for cls in type(space).__mro__]
