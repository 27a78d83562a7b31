"""How ranks share the work of a gradient: each with a copy of the policy (`ddp`), or with a part of it (`fsdp2`)."""

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
    """What the learner asks of the ranks. All but `attach` and `weights_changed` are collective."""

    ranks: Ranks

    def attach(self, optimizer: Any) -> None:
        """Take the optimizer of the policy's parameters."""

    def run(self, compute: Callable[[], Result]) -> Result:
        """Compute something with the policy, by whichever of its methods."""

    def idle_parts(self, parts: Sequence[Batch]) -> list[Batch]:
        """Parts that this rank must compute after its own, and count for nothing. Asked before the first is run."""

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Put the sum over all ranks in the place of each gradient."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, whole."""

    def agree(self) -> None:
        """Have all ranks begin with the weights of rank 0."""

    def weights(self) -> dict[str, Any]:
        """The policy's state dict with whole tensors, on every rank."""

    def gather(self) -> None:
        """Have the state dicts of policy and optimizer hold whole tensors on rank 0, until the weights change."""

    def weights_changed(self) -> None:
        """A step was taken."""


class Replicas:
    """`ddp`: each rank has all weights and optimizer state, and the gradients are summed.

    One message after the backward pass, in the place of torch's `DistributedDataParallel`: that one expects the loss to
    come from `forward`, and each rank to have rows.
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
        """Every rank has everything."""

    def weights_changed(self) -> None:
        """Nothing is kept."""


def data_parallel(kind: str, policy: nn.Module, ranks: Ranks) -> DataParallel:
    """The kind that a config names; one process alone has nothing to spread."""
    if kind == "ddp" or ranks.world_size == 1:
        return Replicas(policy, ranks)
    from hookline.training.learner.fsdp2 import Shards  # takes a second to import

    return Shards(policy, ranks)
