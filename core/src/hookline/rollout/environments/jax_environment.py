"""`JaxEnvironment`: an environment as two pure functions, which the rollout vectorises and scans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hookline.policies.protocol import Actions

if TYPE_CHECKING:
    import jax

__all__ = ["JaxEnvironment", "Transition"]


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
