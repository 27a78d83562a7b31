"""Weights on their way between frameworks: flat dictionaries of arrays, checked by name and shape on arrival.

Whatever can say where its memory is (DLPack) or is NumPy already is read without a framework's help, so that the
rollout worker takes the trainer's tensors without importing torch. What arrives is copied once: the trainer goes on
updating its own tensors in place, while JAX may still be reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.errors import HooklineError, did_you_mean
from hookline.extras import require

if TYPE_CHECKING:
    import jax
    import numpy as np
    from torch import nn

__all__ = ["WeightsError", "check_weights", "fingerprint", "load_into_module", "to_jax", "to_numpy"]

Shapes = Mapping[str, tuple[int, ...]]


class WeightsError(HooklineError, ValueError):
    """Weights do not fit the policy they are meant for."""


def check_weights(weights: Mapping[str, Any], shapes: Shapes) -> None:
    """Raise an error that lists every weight that is missing, unknown, or of the wrong shape."""
    faults = [
        f"{name} is missing{did_you_mean(name, set(weights) - set(shapes))}" for name in shapes if name not in weights
    ]
    faults += [f"{name} is unknown{did_you_mean(name, shapes)}" for name in weights if name not in shapes]
    for name, shape in shapes.items():
        if name in weights and tuple(weights[name].shape) != shape:
            faults.append(f"{name} has shape {tuple(weights[name].shape)}, the policy needs {shape}")
    if faults:
        raise WeightsError("the weights do not fit the policy: " + "; ".join(faults))


def to_numpy(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weights as NumPy arrays of their own memory, from torch, JAX, MLX or NumPy."""
    np = require("numpy", "handing over weights")
    return {name: np.array(_readable(np, value)) for name, value in weights.items()}


def _readable(np: Any, value: Any) -> Any:
    # A torch parameter refuses DLPack while it wants a gradient; `detach` is all it takes, and needs no torch here.
    value = value.detach() if hasattr(value, "detach") else value
    value = value.cpu() if hasattr(value, "cpu") else value
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    return np.from_dlpack(value)


def to_jax(weights: Mapping[str, Any]) -> dict[str, jax.Array]:
    """The weights as JAX arrays of their own memory, committed to JAX's first device.

    All weights are committed, those that a worker starts with too: jit compiles once more for arrays that differ
    in nothing but that.
    """
    framework = require("jax", "a rollout worker")
    arrays: dict[str, jax.Array] = framework.device_put(to_numpy(weights), framework.devices()[0])
    return arrays


def fingerprint(module: nn.Module) -> str:
    """A hash of a torch module's weights: the same for the same weights, and for no others."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_into_module(module: nn.Module, shapes: Shapes, weights: Mapping[str, Any]) -> None:
    """Copy weights into a torch module whose parameters go by the same names."""
    import torch

    check_weights(weights, shapes)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in to_numpy(weights).items()})
