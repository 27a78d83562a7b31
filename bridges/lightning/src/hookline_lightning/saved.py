"""A session's state as Lightning's checkpoints hold it: plain values and tensors, which load without pickled code."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

__all__ = ["from_saved", "generator_states", "generators_of_all", "set_generators", "to_saved"]

ARRAY: Final = "numpy array"
"""The key of a tensor that was an array of NumPy."""


def to_saved(value: Any) -> Any:
    """The same with plain dictionaries and lists, and with tensors in place of NumPy's arrays."""
    if isinstance(value, Mapping):
        return {key: to_saved(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_saved(own) for own in value]
    if isinstance(value, np.ndarray):
        return {ARRAY: torch.from_numpy(value.copy())}
    return value.item() if isinstance(value, np.generic) else value


def from_saved(value: Any) -> Any:
    """What `to_saved` was given."""
    if isinstance(value, Mapping):
        if value.keys() == {ARRAY}:
            return value[ARRAY].numpy()
        return {key: from_saved(own) for key, own in value.items()}
    return [from_saved(own) for own in value] if isinstance(value, list) else value


def generator_states() -> dict[str, Any]:
    """The states of the process's random generators: torch's on all devices, NumPy's and Python's."""
    version, numbers, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    name, key, *rest = numpy_state
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, key.tolist(), *rest],
        "python": [version, list(numbers), gauss],
    }


def generators_of_all(world_size: int) -> list[dict[str, Any]]:
    """Those of all ranks, in order. Every rank must ask."""
    own = generator_states()
    if world_size == 1:
        return [own]
    states: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(states, own)
    return states


def set_generators(states: Mapping[str, Any]) -> None:
    """Put the random generators where they were when `generator_states` was called."""
    torch.set_rng_state(states["torch"])
    if len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    np.random.set_state(tuple(states["numpy"]))
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
