"""Random keys by name: each use of chance in a step has a key that no other has."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["key_for", "key_of_step"]


def key_for(key: Any, name: str) -> Any:
    """The key that belongs to `name`, from a key that belongs to many. No key stays none."""
    return None if key is None else _folding()(key, zlib.crc32(name.encode()))


def key_of_step(key: Any, step: int) -> Any:
    """The key of one step, from the key of a worker."""
    return _folding()(key, step)


@cache
def _folding() -> Callable[[Any, int], Any]:
    """JAX's `fold_in`, imported when the first key is. Outside of jit it would be dispatched operation by operation."""
    import jax
    import numpy as np

    fold_in = jax.jit(jax.random.fold_in)
    return lambda key, number: fold_in(key, np.uint32(number))
