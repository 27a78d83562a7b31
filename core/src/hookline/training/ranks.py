"""The processes of a data-parallel run, as torchrun starts them, and what they tell each other."""

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
    """This process among the others. Alone, every operation leaves things as they are.

    Each operation is collective: all ranks must come to it, so none may be in an implementation that runs on some only.

    Gloo's threads hold tensors of Python's: a process that ends while they run aborts, when one of them lets go of a
    tensor and there is no interpreter any more. So a run leaves the group when it is over, and joins it when it begins.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, timeout_seconds: float = 60.0) -> None:
        self.rank = rank
        self.world_size = world_size
        self._timeout_seconds = timeout_seconds
        self._stays_joined = False

    def join(self) -> None:
        """Be in touch with the other ranks, unless that is so already."""
        if self.world_size > 1 and not dist.is_initialized():
            _join(self._timeout_seconds)

    def leave(self) -> None:
        """End the threads that talk to the other ranks. A group that was made elsewhere stays."""
        if self.world_size > 1 and not self._stays_joined:
            _leave()

    def stay_joined(self) -> None:
        """Keep the group until the process ends, for weights that are spread over it."""
        self._stays_joined = True

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.world_size > 1:
            with self._attributed("adding up numbers"):
                dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Put the sum over all ranks in the place of each parameter's gradient; one that no rank has stays None."""
        if self.world_size > 1:
            # In one message for each type of number: a call for each parameter costs more than its numbers.
            for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
                own = [parameter for parameter in parameters if parameter.dtype == dtype]
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
                ranks_with_one = gradients[0].new_tensor([p.grad is not None for p in own])
                flat = torch.cat([ranks_with_one, *(gradient.reshape(-1) for gradient in gradients)])
                with self._attributed("adding up gradients"):
                    dist.all_reduce(flat)
                flags, *sums = flat.split_with_sizes([len(own), *(parameter.numel() for parameter in own)])
                for parameter, is_there, total in zip(own, flags.tolist(), sums, strict=True):
                    parameter.grad = total.view_as(parameter) if is_there else None

    def broadcast(self, module: nn.Module) -> None:
        """Put rank 0's weights in the place of each rank's own."""
        self.broadcast_tensors(module.state_dict().values())

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Put rank 0's numbers in the place of each rank's own."""
        if self.world_size > 1:
            with self._attributed("taking over weights"):
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)

    def any(self, flag: bool) -> bool:
        """Whether some rank says so."""
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
                f"answer in time. The first error above is the cause; this is what became of it here: {error}"
            ) from error


def join_ranks(timeout_seconds: float) -> Ranks:
    """The ranks of this process: those that torchrun has started, or it alone."""
    if not dist.is_available():
        return Ranks()
    if not dist.is_initialized():
        if number_in_environment("WORLD_SIZE", 1) <= 1 or "MASTER_ADDR" not in os.environ:
            return Ranks()
        _join(timeout_seconds)
    return Ranks(dist.get_rank(), dist.get_world_size(), timeout_seconds)


_made_here: set[int] = set()
"""The identity of the group that this module has made. A reference to the group itself would keep its threads."""


@cache
def _meeting_point() -> tuple[Any, int, int]:
    """The store in which ranks find each other, with the rank and their number, as torchrun says."""
    meeting: tuple[Any, int, int] = next(rendezvous("env://"))
    return meeting


_times_joined = itertools.count()


def _join(timeout_seconds: float) -> None:
    # Its functions have the group as a default argument. Imported later, by an optimizer for instance, they would keep
    # the group and its threads for good.
    import torch.distributed.nn

    store, rank, world_size = _meeting_point()
    # Each time under names of its own: the addresses of the time before are still in the store.
    own = dist.PrefixStore(f"hookline-{next(_times_joined)}", store)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=timeout_seconds)
    # Objects and flags are exchanged on the CPU, gradients where they are.
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
