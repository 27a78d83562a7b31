"""JAX rng keys that are derived from others, by name or by number."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["fold_in", "key_for"]


def key_for(key: Any, name: str) -> Any:
    """Derive the key for `name`. None stays None."""
    return None if key is None else fold_in(key, zlib.crc32(name.encode()))


def fold_in(key: Any, number: int) -> Any:
    """Derive the key for `number`."""
    return _folding()(key, number)


@cache
def _folding() -> Callable[[Any, int], Any]:
    """JAX's `fold_in`, jitted because it is slow when its operations are dispatched one by one."""
    import jax
    import numpy as np

    jitted = jax.jit(jax.random.fold_in)
    return lambda key, number: jitted(key, np.uint32(number))
