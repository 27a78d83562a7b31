"""The processes (ranks) of a data-parallel run started by torchrun, and their collective operations."""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from hookline.session.opening import number_in_environment
from hookline.training.errors import RankError

__all__ = ["Ranks", "join_ranks"]


class Ranks:
    """The rank of this process, and operations over all ranks. With one process they change nothing.

    Each operation is collective: all ranks must call it. A hook implementation that runs on some ranks only must not.

    A run joins the process group when it starts and leaves it when it ends. Gloo's threads hold Python tensors; if one
    frees a tensor after the interpreter has shut down, the process aborts.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, timeout_seconds: float = 60.0) -> None:
        self.rank = rank
        self.world_size = world_size
        self._timeout_seconds = timeout_seconds
        self._stays_joined = False

    def join(self) -> None:
        """Join the process group, unless this process is in one already."""
        if self.world_size > 1 and not dist.is_initialized():
            _join(self._timeout_seconds)

    def leave(self) -> None:
        """Leave the process group, which ends its threads. A group that other code created stays."""
        if self.world_size > 1 and not self._stays_joined:
            _leave()

    def stay_joined(self) -> None:
        """Keep the group until the process ends, for sharded weights."""
        self._stays_joined = True

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.world_size > 1:
            with self._attributed("summing numbers"):
                dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by its sum over all ranks. A gradient that no rank has stays None."""
        if self.world_size > 1:
            # One all-reduce per dtype: one per parameter would cost more in latency than in data.
            for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
                own = [parameter for parameter in parameters if parameter.dtype == dtype]
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
                ranks_with_one = gradients[0].new_tensor([p.grad is not None for p in own])
                flat = torch.cat([ranks_with_one, *(gradient.reshape(-1) for gradient in gradients)])
                with self._attributed("summing gradients"):
                    dist.all_reduce(flat)
                flags, *sums = flat.split_with_sizes([len(own), *(parameter.numel() for parameter in own)])
                for parameter, is_there, total in zip(own, flags.tolist(), sums, strict=True):
                    parameter.grad = total.view_as(parameter) if is_there else None

    def broadcast(self, module: nn.Module) -> None:
        """Copy rank 0's weights to all ranks."""
        self.broadcast_tensors(module.state_dict().values())

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copy rank 0's tensors to all ranks."""
        if self.world_size > 1:
            with self._attributed("copying weights"):
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        return bool(self.sum(torch.tensor(float(flag)))) if self.world_size > 1 else flag

    def gather(self, value: Any) -> list[Any]:
        """Each rank's value, on all ranks."""
        values = [value] * self.world_size
        if self.world_size > 1:
            with self._attributed("gathering states"):
                dist.all_gather_object(values, value)
        return values

    @contextmanager
    def _attributed(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.world_size} lost the other ranks while {what}: one has died, or did not "
                f"respond in time. The first error above is the cause. The error on this rank: {error}"
            ) from error


def join_ranks(timeout_seconds: float) -> Ranks:
    """The ranks that torchrun has started, or a single rank."""
    if not dist.is_available():
        return Ranks()
    if not dist.is_initialized():
        if number_in_environment("WORLD_SIZE", 1) <= 1 or "MASTER_ADDR" not in os.environ:
            return Ranks()
        _join(timeout_seconds)
    return Ranks(dist.get_rank(), dist.get_world_size(), timeout_seconds)


_made_here: set[int] = set()
"""The id of the group that this module created. A reference to the group would keep its threads alive."""


@cache
def _rendezvous() -> tuple[Any, int, int]:
    """The store through which ranks find each other, the rank and the world size, from torchrun's variables."""
    found: tuple[Any, int, int] = next(rendezvous("env://"))
    return found


_times_joined = itertools.count()


def _join(timeout_seconds: float) -> None:
    # Imported before there is a group. Its functions have the current group as a default argument, and would keep that
    # group and its threads alive forever.
    import torch.distributed.nn

    store, rank, world_size = _rendezvous()
    # A new prefix each time, since the store still holds the addresses of the previous group.
    own = dist.PrefixStore(f"hookline-{next(_times_joined)}", store)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=timeout_seconds)
    # Objects and flags are exchanged on the CPU, gradients on their device.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=timeout)
    _made_here.add(id(dist.group.WORLD))
    atexit.register(_leave)  # for a trainer that never runs


def _leave() -> None:
    atexit.unregister(_leave)
    if dist.is_initialized() and id(dist.group.WORLD) in _made_here:
        leave: Callable[[], None] = dist.destroy_process_group
        leave()
    _made_here.clear()
