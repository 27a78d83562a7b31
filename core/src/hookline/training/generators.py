"""The random generators that a run depends on, as values that JSON can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["restore_generators", "seed_generators", "take_generators"]


def seed_generators(seed: int) -> None:
    """Set the generators that belong to nobody in particular: Python's, NumPy's and torch's."""
    random.seed(seed)
    np.random.seed(seed)  # environments and datasets of others may draw from it
    torch.manual_seed(seed)


def take_generators() -> dict[str, Any]:
    """Where these generators stand."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
    }


def restore_generators(state: Mapping[str, Any]) -> None:
    """Put these generators where they stood."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.asarray(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(state["torch"])), dtype=torch.uint8))
