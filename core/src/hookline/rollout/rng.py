"""JAX rng keys. Every use of randomness in a step has its own key."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

__all__ = ["StepKeys", "key_for", "key_of_evaluation", "key_of_step", "keys_of_step", "seed_of"]


def key_for(key: Any, name: str) -> Any:
    """Derive the key for `name`. None stays None."""
    return None if key is None else _folding()(key, zlib.crc32(name.encode()))


def key_of_step(key: Any, step: int) -> Any:
    """Derive the key of one step from a worker's key."""
    return _folding()(key, step)


def key_of_evaluation(seed: int) -> Any:
    """The key of an evaluation, which depends on nothing but its seed. Two runs are evaluated on the same problems."""
    import jax

    return key_for(jax.random.key(seed), "evaluation")


def seed_of(key: Any) -> list[int]:
    """The key as integers, to seed the rng of another framework."""
    import jax

    words: list[int] = jax.random.key_data(key).tolist()
    return words


@cache
def _folding() -> Callable[[Any, int], Any]:
    """JAX's `fold_in`, jitted because it is slow when its operations are dispatched one by one."""
    import jax
    import numpy as np

    fold_in = jax.jit(jax.random.fold_in)
    return lambda key, number: fold_in(key, np.uint32(number))


class StepKeys(NamedTuple):
    """The independent random inputs of one step."""

    lesson: Any
    """A uniform number from 0..1 that selects the lesson."""
    rollout: Any
    """The key of the rollout."""
    on_rollout_start: Any
    """The key in the context of `on_rollout_start`."""
    on_rollout_end: Any
    """The key in the context of `on_rollout_end`."""


def keys_of_step(key: Any, step: int) -> StepKeys:
    """The random inputs of one step, from a worker's key."""
    return _drawing()(key, step)


@cache
def _drawing() -> Callable[[Any, int], StepKeys]:
    import jax
    import numpy as np

    @jax.jit
    def draw(key: Any, step: Any) -> StepKeys:
        of_step = jax.random.fold_in(key, step)
        keys = StepKeys(*(jax.random.fold_in(of_step, zlib.crc32(name.encode())) for name in StepKeys._fields))
        return keys._replace(lesson=jax.random.uniform(keys.lesson))

    return lambda key, step: draw(key, np.uint32(step))
