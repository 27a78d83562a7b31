"""Random keys: every use of randomness in a step has a key that no other has."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

__all__ = ["StepChance", "chance_of_step", "key_for", "key_of_step", "seed_of"]


def key_for(key: Any, name: str) -> Any:
    """The key that belongs to `name`, from a key that belongs to many. No key stays none."""
    return None if key is None else _folding()(key, zlib.crc32(name.encode()))


def key_of_step(key: Any, step: int) -> Any:
    """The key of one step, from the key of a worker."""
    return _folding()(key, step)


def seed_of(key: Any) -> list[int]:
    """The key as plain numbers, for generators of other frameworks."""
    import jax

    words: list[int] = jax.random.key_data(key).tolist()
    return words


@cache
def _folding() -> Callable[[Any, int], Any]:
    """JAX's `fold_in`, imported when the first key is. Outside of jit it would be dispatched operation by operation."""
    import jax
    import numpy as np

    fold_in = jax.jit(jax.random.fold_in)
    return lambda key, number: fold_in(key, np.uint32(number))


class StepChance(NamedTuple):
    """What a step draws on, each independent of the others."""

    lesson: Any
    """A number from 0..1 that decides on the lesson."""
    rollout: Any
    """The key of the rollout itself."""
    on_rollout_start: Any
    """The key that plugins are given before the rollout."""
    on_rollout_end: Any
    """The key that plugins are given after it."""


def chance_of_step(key: Any, step: int) -> StepChance:
    """What belongs to one step of the worker with this key."""
    return _drawing()(key, step)


@cache
def _drawing() -> Callable[[Any, int], StepChance]:
    import jax
    import numpy as np

    @jax.jit
    def draw(key: Any, step: Any) -> StepChance:
        of_step = jax.random.fold_in(key, step)
        keys = StepChance(*(jax.random.fold_in(of_step, zlib.crc32(name.encode())) for name in StepChance._fields))
        return keys._replace(lesson=jax.random.uniform(keys.lesson))

    return lambda key, step: draw(key, np.uint32(step))
