"""What the ranks of a trainer must agree on: plugins run on rank 0, and the trainer stops on all ranks or on none."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Ranks"]


class Ranks:
    """The processes of a trainer. Made on all of them at once."""

    def __init__(self) -> None:
        self._group: Any = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # On the CPU: asking a GPU once a step would make the training thread wait for it.
            self._group = dist.new_group(backend="gloo")

    def any(self, flag: bool) -> bool:
        """Whether a rank says so. All ranks must ask."""
        if self._group is None:
            return flag
        flags = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        return bool(flags.item())

    def leave(self) -> None:
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None
