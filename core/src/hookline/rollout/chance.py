"""All chance of one step of a worker, drawn at once: each call of JAX from Python costs more than the drawing."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

__all__ = ["StepChance", "chance_of_step"]


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
