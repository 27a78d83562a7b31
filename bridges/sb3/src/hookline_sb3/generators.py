"""The random generators that training draws from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["restore_generators", "take_generators"]


def take_generators(model: Any) -> dict[str, Any]:
    """Where Python's, NumPy's and torch's generators stand, and the model's that draws random actions."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
        "actions": model.action_space.np_random.bit_generator.state,
    }


def restore_generators(model: Any, taken: Mapping[str, Any]) -> None:
    """Put these generators where they stood."""
    random.setstate(taken["python"])
    np.random.set_state(taken["numpy"])
    torch.set_rng_state(taken["torch"])
    torch.cuda.set_rng_state_all(taken["cuda"][: torch.cuda.device_count()])
    model.action_space.np_random.bit_generator.state = taken["actions"]
