"""Whole weights of a model that FSDP2 has spread over the ranks.

Checkpoints are saved on rank 0 alone, which cannot ask the others then. So before an epoch ends, and before training
does, all ranks gather what each of them has a part of, and rank 0 keeps it for as long as that moment lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

__all__ = ["Whole", "is_sharded"]


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(own, DTensor) for own in model.parameters())


class Whole:
    """Stands for a model or an optimizer in shards. Once gathered, its `state_dict()` is whole."""

    def __init__(self, sharded: Any) -> None:
        self._sharded = sharded
        self._gathered: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sharded, name)

    def state_dict(self) -> Any:
        return self._sharded.state_dict() if self._gathered is None else self._gathered

    def gather(self) -> None:
        """Collect all parts on rank 0. All ranks must come to it."""
        whole = _whole(self._sharded.state_dict(), keep=dist.get_rank() == 0)
        self._gathered = whole if dist.get_rank() == 0 else None

    def let_go(self) -> None:
        self._gathered = None


def _whole(value: Any, *, keep: bool) -> Any:
    """The same structure with whole tensors on the CPU; what is not kept takes part, and is dropped at once."""
    if isinstance(value, DTensor):
        tensor = value.full_tensor().detach()
        return tensor.cpu() if keep else None
    if isinstance(value, Mapping):
        return {key: _whole(own, keep=keep) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_whole(own, keep=keep) for own in value)
    return value
