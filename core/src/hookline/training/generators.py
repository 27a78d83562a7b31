"""The random generators that a run depends on, as values that JSON can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["restore_generators", "seed_generators", "take_generators"]


def seed_generators(seed: int) -> None:
    """Seed the global generators: Python's, NumPy's and torch's on all devices."""
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
        "torch": _as_hex(torch.get_rng_state()),
        "cuda": [_as_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "mps": _as_hex(torch.mps.get_rng_state()) if torch.backends.mps.is_available() else None,
    }


def restore_generators(state: Mapping[str, Any]) -> None:
    """Put these generators where they stood."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.asarray(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_hex(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_from_hex(own) for own in state["cuda"][: torch.cuda.device_count()]])
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(_from_hex(state["mps"]))


def _as_hex(state: Tensor) -> str:
    return bytes(state.tolist()).hex()


def _from_hex(text: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
