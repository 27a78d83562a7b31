"""What a JAX-native environment is: two pure functions for a single copy, which the rollout vectorises and scans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hookline.policies.actions import Actions

if TYPE_CHECKING:
    import jax

__all__ = ["JaxEnvironment", "Transition"]


class Transition(NamedTuple):
    """What one step leads to. The state and observation are those before any reset."""

    state: Any
    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    """The episode is over: nothing follows, and its value is zero."""
    truncated: jax.Array
    """The episode was cut short: it would have gone on, and its value is bootstrapped."""


@dataclass(frozen=True)
class JaxEnvironment:
    """An environment as pure functions. Two of the same functions are the same to `jit`, and compile once."""

    name: str
    observation_size: int
    actions: Actions
    reset: Callable[[jax.Array], tuple[Any, jax.Array]]
    """From a key to a state (any pytree of arrays) and its observation, a vector."""
    step: Callable[[jax.Array, Any, jax.Array], Transition]
    """From a key, a state and an action to what follows."""
