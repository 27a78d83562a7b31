"""The JAX rng keys of a worker's steps. Every use of randomness in a step has its own key."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from hookline.rng_keys import fold_in, key_for

__all__ = ["StepKeys", "key_of_evaluation", "key_of_step", "keys_of_step", "seed_of"]


def key_of_step(key: Any, step: int) -> Any:
    """Derive the key of one step from a worker's key."""
    return fold_in(key, step)


def key_of_evaluation(seed: int) -> Any:
    """The key of an evaluation, which depends on nothing but its seed. Two runs are evaluated on the same problems."""
    import jax

    return key_for(jax.random.key(seed), "evaluation")


def seed_of(key: Any) -> list[int]:
    """The key as integers, to seed the rng of another framework."""
    import jax

    words: list[int] = jax.random.key_data(key).tolist()
    return words


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
