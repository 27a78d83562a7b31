"""What Hookline keeps in a checkpoint of the trainer's, as JSON.

transformers has a place for callbacks in `trainer_state.json`. So a checkpoint that has the trainer's counters has what
plugins remember as well, wherever it is copied to, and every rank reads it. An array is

    {"safetensors": "<base64 of a file with the one array>", "torch": true}

without the second key where it was one of NumPy.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

import safetensors.torch
import torch

from hookline.errors import HooklineError
from hookline_hookspecs.redaction import redact

__all__ = ["pack", "unpack"]

ARRAY: Final = "safetensors"
NAME: Final = "array"


def pack(host_state: Mapping[str, Any]) -> dict[str, Any]:
    """What `Session.host_state` returned, as JSON can hold it and without secrets."""
    packed: dict[str, Any] = _packed(host_state)
    for plugin, saved in packed["plugins"].items():
        try:
            json.dumps(saved, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise HooklineError(
                f"plugin {plugin!r} returned from save_plugin_state what the trainer's checkpoint cannot hold: {error}"
            ) from error
    # By value alone: a plugin may call its random numbers `key`, and must get back what it gave.
    safe: dict[str, Any] = redact(packed, by_names=False)
    return safe


def unpack(packed: Any) -> Any:
    """What was packed."""
    if isinstance(packed, dict) and ARRAY in packed:
        tensor = safetensors.torch.load(base64.b64decode(packed[ARRAY]))[NAME]
        return tensor if packed.get("torch") else tensor.numpy()
    if isinstance(packed, dict):
        return {key: unpack(value) for key, value in packed.items()}
    return [unpack(value) for value in packed] if isinstance(packed, list) else packed


def _packed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _packed(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(own) for own in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        packed = {ARRAY: base64.b64encode(safetensors.torch.save({NAME: tensor})).decode()}
        return {**packed, "torch": True} if isinstance(value, torch.Tensor) else packed
    return value
