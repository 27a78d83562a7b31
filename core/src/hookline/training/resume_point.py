"""The state that a resumed run needs besides weights: rngs, data order and the state of the loop."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from hookline_hookspecs import hookimpl

if TYPE_CHECKING:
    from hookline.training.trainer import Trainer

__all__ = ["ResumePoint", "restore_generators", "seed_generators", "take_generators"]

NAME: Final = "trainer"
"""The plugin name of the trainer."""


def seed_generators(seed: int) -> None:
    """Seed the global rngs of Python, NumPy, and torch on the CPU, CUDA and MPS."""
    random.seed(seed)
    np.random.seed(seed)  # users' environments and datasets may use it
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes a millisecond to look for other devices
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def take_generators() -> dict[str, Any]:
    """The state of the global rngs, as JSON values."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        # As text, since a list of 624 numbers takes longer to save.
        "python": [version, np.array(words, np.uint32).tobytes().hex(), gauss],
        "numpy": [name, np.asarray(keys, np.uint32).tobytes().hex(), position, has_gauss, cached],
        "torch": _as_hex(torch.get_rng_state()),
        "cuda": [_as_hex(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
        "mps": _as_hex(torch.mps.get_rng_state()) if torch.backends.mps.is_available() else None,
    }


def restore_generators(state: Mapping[str, Any]) -> None:
    """Restore the state of the global rngs."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(np.frombuffer(bytes.fromhex(words), np.uint32).tolist()), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.frombuffer(bytes.fromhex(keys), np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_hex(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_from_hex(own) for own in state["cuda"][: torch.cuda.device_count()]])
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(_from_hex(state["mps"]))


def _as_hex(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


class ResumePoint:
    """Saves and restores the trainer's progress as the state of a plugin, since checkpoints store plugin states."""

    critical = True  # a run resumed from part of its state is not the same run

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @hookimpl
    def save_plugin_state(self) -> Mapping[str, Any]:
        return self._trainer.progress()

    @hookimpl
    def load_plugin_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        if NAME in saved:
            self._trainer.load_progress(saved[NAME])
