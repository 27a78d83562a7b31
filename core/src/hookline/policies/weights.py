"""Passes weights between frameworks as flat dictionaries of arrays, checked by name and shape.

Arrays are read with NumPy or DLPack, so the rollout worker reads the trainer's tensors without importing torch.
`to_numpy` and `to_jax` copy the weights, because the trainer updates its own tensors in place while JAX may still be
reading. `share_with_jax` does not, for a reader that is done before the next update.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.errors import HooklineError, did_you_mean
from hookline.importing import require

if TYPE_CHECKING:
    import jax
    import numpy as np
    from torch import nn

__all__ = ["WeightsError", "check_weights", "fingerprint", "load_into_module", "share_with_jax", "to_jax", "to_numpy"]

Shapes = Mapping[str, tuple[int, ...]]


class WeightsError(HooklineError, ValueError):
    """Weights do not fit the policy."""


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
    """Copies the weights to NumPy arrays, from torch, JAX, MLX or NumPy."""
    np = require("numpy", "handing over weights")
    return {name: np.array(_readable(np, value)) for name, value in weights.items()}


def _readable(np: Any, value: Any) -> Any:
    # A torch parameter that requires a gradient does not support DLPack, so it is detached. This needs no torch import.
    value = value.detach() if hasattr(value, "detach") else value
    value = value.cpu() if hasattr(value, "cpu") else value
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    return np.from_dlpack(value)


def to_jax(weights: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Copies the weights to JAX arrays, committed to JAX's first device.

    A worker's initial weights are committed too, because jit compiles separately for committed and uncommitted arrays.
    """
    framework = require("jax", "a rollout worker")
    arrays: dict[str, jax.Array] = framework.device_put(to_numpy(weights), framework.devices()[0])
    return arrays


def share_with_jax(weights: Mapping[str, Any], dtype: Any) -> dict[str, jax.Array]:
    """The weights as JAX arrays of a dtype, committed to JAX's first device, without a copy where that is possible.

    JAX reads a torch tensor in place if it has that dtype, is on the CPU as JAX is, and is aligned to 64 bytes. A
    change of the tensor then changes the array.
    """
    framework = require("jax", "a rollout engine")
    device = framework.devices()[0]
    # As NumPy arrays, since JAX releases those in a thread that has the GIL. A tensor that came by DLPack is released
    # in a thread of XLA, which aborts the process if the interpreter has ended.
    arrays = framework.device_put(
        {name: _in_place(framework, own) for name, own in weights.items()}, device, may_alias=True
    )
    return {name: array if array.dtype == dtype else array.astype(dtype) for name, array in arrays.items()}


def _in_place(framework: Any, value: Any) -> Any:
    """A torch tensor as the NumPy array of the same memory, and a copy of one whose dtype NumPy does not have."""
    if isinstance(value, framework.Array):
        return value
    if not hasattr(value, "detach"):
        return _readable(require("numpy", "handing over weights"), value)
    tensor = value.detach().cpu()
    return (tensor.float() if tensor.dtype.itemsize < 4 else tensor).numpy()


def fingerprint(module: nn.Module) -> str:
    """A hash of a torch module's weights."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_into_module(module: nn.Module, shapes: Shapes, weights: Mapping[str, Any]) -> None:
    """Copy weights into a torch module whose parameters have the same names."""
    import torch

    check_weights(weights, shapes)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in to_numpy(weights).items()})
