"""Data parallelism: each rank holds a copy of the policy (`ddp`) or a shard of it (`fsdp2`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from hookline.training.ranks import Ranks

__all__ = ["Batch", "DataParallel", "Replicas", "data_parallel"]

Batch = Mapping[str, Tensor]
Result = TypeVar("Result")


class DataParallel(Protocol):
    """The operations of the learner on all ranks. All but `attach` and `weights_changed` are collective."""

    ranks: Ranks

    def attach(self, optimizer: Any) -> None:
        """Receive the optimizer of the policy's parameters."""

    def run(self, compute: Callable[[], Result]) -> Result:
        """Call a function that computes with the policy, by any of its methods."""

    def idle_parts(self, parts: Sequence[Batch]) -> list[Batch]:
        """Parts that this rank must compute after its own, with weight zero. Called before the first part is run."""

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by its sum over all ranks."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, over all shards."""

    def agree(self) -> None:
        """Copy the weights of rank 0 to all ranks."""

    def weights(self) -> dict[str, Any]:
        """The policy's state dict with whole tensors, on every rank."""

    def gather(self) -> None:
        """Make the state dicts of policy and optimizer hold whole tensors on rank 0, until the weights change."""

    def weights_changed(self) -> None:
        """Called after each gradient step."""


class Replicas:
    """`ddp`: each rank has all weights and optimizer state, and the gradients are summed.

    The gradients are summed in one all-reduce after the backward pass. torch's `DistributedDataParallel` does not fit:
    it needs the loss to come from `forward`, and rows on every rank.
    """

    def __init__(self, policy: nn.Module, ranks: Ranks) -> None:
        self._policy = policy
        self.ranks = ranks

    def attach(self, optimizer: Any) -> None:
        del optimizer

    def run(self, compute: Callable[[], Result]) -> Result:
        return compute()

    def idle_parts(self, parts: Sequence[Batch]) -> list[Batch]:
        del parts
        return []

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        self.ranks.sum_gradients(parameters)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return get_total_norm(gradients)

    def agree(self) -> None:
        self.ranks.broadcast(self._policy)

    def weights(self) -> dict[str, Any]:
        return self._policy.state_dict()

    def gather(self) -> None:
        """Nothing to do: every rank holds everything."""

    def weights_changed(self) -> None:
        """Nothing to do: no whole tensors are cached."""


def data_parallel(kind: str, policy: nn.Module, ranks: Ranks) -> DataParallel:
    """The kind that a config names. A single process always uses `Replicas`."""
    if kind == "ddp" or ranks.world_size == 1:
        return Replicas(policy, ranks)
    from hookline.training.learner.fsdp2 import Shards  # takes a second to import

    return Shards(policy, ranks)
