"""`fsdp2`: shards parameters, gradients and optimizer state over the ranks, with `torch.distributed.fsdp`.

A block's parameters are gathered just before it computes and freed afterwards. Between steps `policy.parameters()` are
DTensors, of which this rank holds a shard. `Shards.gather` makes state dicts whole for checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm

from hookline.training.errors import TrainingError
from hookline.training.learner.data_parallel import Batch
from hookline.training.ranks import Ranks

__all__ = ["Shards"]

Result = TypeVar("Result")


class Root(nn.Module):
    """The root module for FSDP2. Its forward calls any function that computes with the policy.

    FSDP2 gathers parameters when `forward` is called, but losses call `evaluate_actions`, `token_logprobs` or a
    user's method. Inside this forward the gathered parameters are available to all of them.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, compute: Callable[[], Result]) -> Result:
        return compute()


class Shards:
    """Shards a policy over the ranks, starting from the weights of rank 0."""

    def __init__(self, policy: nn.Module, ranks: Ranks) -> None:
        ranks.broadcast(policy)
        ranks.stay_joined()
        self._policy = policy
        self.ranks = ranks
        self._optimizer: Any = None
        self._weights: dict[str, Any] | None = None
        """The policy's state dict with whole tensors; None after a step."""
        self._optimizer_state: dict[int, Any] | None = None
        """The optimizer's state with whole tensors, on rank 0; None after a step."""
        device = next(policy.parameters()).device
        mesh = init_device_mesh(device.type, (ranks.world_size,))
        for block in dict.fromkeys(_blocks(policy)):
            fully_shard(block, mesh=mesh)
        root = Root(policy)
        self._root: Any = fully_shard(root, mesh=mesh)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # Sum instead of FSDP2's mean: the learner weights ranks by their numbers of tokens.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo supports no other
        hooks: Any = policy  # torch has no types for these two
        hooks.register_state_dict_post_hook(partial(self._insert_weights))  # torch sets an attribute on it
        hooks.register_load_state_dict_pre_hook(self._shard_weights)

    def attach(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        optimizer.register_state_dict_post_hook(self._insert_optimizer_state)
        optimizer.register_load_state_dict_pre_hook(self._shard_optimizer_state)

    # -- the gradient ---------------------------------------------------------------------------------------------

    def run(self, compute: Callable[[], Result]) -> Result:
        result: Result = self._root(compute)
        if not torch.is_grad_enabled():
            self._root.reshard()  # otherwise the backward pass does this
        return result

    def idle_parts(self, parts: Sequence[Batch]) -> list[Batch]:
        """Repeats of the last part, so that all ranks run equally many passes: each pass gathers from all ranks.

        A rank without rows uses a row of another rank.
        """
        numbers = torch.zeros(self.ranks.world_size)
        numbers[self.ranks.rank] = len(parts)
        fewest, most = map(int, self.ranks.sum(numbers).aminmax())
        if fewest == 0 < most:
            rows = self.ranks.gather({name: own[:1].cpu() for name, own in parts[-1].items()} if parts else None)
            device = next(self._policy.parameters()).device
            borrowed = next(row for row in rows if row is not None)
            last = parts[-1] if parts else {name: row.to(device) for name, row in borrowed.items()}
            return [last] * (most - len(parts))
        return [parts[-1]] * (most - len(parts)) if most else []

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Nothing to do: the backward pass has summed them."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        norm = get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    # -- whole tensors --------------------------------------------------------------------------------------------

    def agree(self) -> None:
        """Copy rank 0's buffers, which are not sharded. Shards restored from the same checkpoint agree already."""
        self.ranks.broadcast_tensors(self._policy.buffers())

    def weights(self) -> dict[str, Any]:
        if self._weights is None:
            shards = self._policy.state_dict()
            self._weights = {name: _whole(value) for name, value in shards.items()}
        return self._weights

    def gather(self) -> None:
        """Gather in advance: checkpoints are saved on rank 0 only, where no collective call is possible."""
        self.weights()
        self._optimizer_state = None
        state = self._optimizer.state_dict()["state"]
        whole = {}
        for number, parameter in self._numbered_parameters():
            for name, value in state.get(number, {}).items():
                if isinstance(value, DTensor) and value.shape != parameter.shape:
                    raise TrainingError(
                        f'learner.data_parallel is "fsdp2", and the state {name!r} of {type(self._optimizer).__name__} '
                        "has another shape than its parameter, so it could not be restored: choose another optimizer, "
                        'or "ddp"'
                    )
            # One parameter at a time, since only rank 0 keeps the whole tensors.
            values = {name: _whole(value) for name, value in state.get(number, {}).items()}
            if self.ranks.rank == 0 and values:
                whole[number] = values
        self._optimizer_state = whole if self.ranks.rank == 0 else None

    def weights_changed(self) -> None:
        self._weights = self._optimizer_state = None

    def _insert_weights(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
        del module, metadata
        for name, value in (self._weights or {}).items():
            state_dict[prefix + name] = value

    def _shard_weights(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        del module, others
        self.weights_changed()
        for name, parameter in self._policy.named_parameters(remove_duplicate=False):
            if prefix + name in state_dict:
                state_dict[prefix + name] = _own_shard(state_dict[prefix + name], parameter)

    def _insert_optimizer_state(self, optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        del optimizer
        return state_dict if self._optimizer_state is None else {**state_dict, "state": self._optimizer_state}

    def _shard_optimizer_state(self, optimizer: Any, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        self._optimizer_state = None
        groups = [dict(group) for group in state_dict["param_groups"]]
        for saved, own in zip(groups, optimizer.param_groups, strict=False):
            # Keep this run's choice of kernels: not all of them support shards.
            saved.update({name: own[name] for name in ("foreach", "fused") if name in own})
        state = {
            number: {name: _own_shard(value, parameter) for name, value in state_dict["state"][number].items()}
            for number, parameter in self._numbered_parameters()
            if number in state_dict["state"]
        }
        return {**state_dict, "state": state, "param_groups": groups}

    def _numbered_parameters(self) -> Iterator[tuple[int, nn.Parameter]]:
        """The parameters with their numbers in the optimizer's state dict."""
        return enumerate(parameter for group in self._optimizer.param_groups for parameter in group["params"])


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The blocks in the outermost module lists, such as the layers of a transformer.

    Blocks without submodules are skipped. They are small, and their parameters are often used without calling them.
    """
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if any(True for _ in block.children()))
        else:
            yield from _blocks(child)


def _whole(value: Any) -> Any:
    """The unsharded tensor, on the CPU since it may not fit in the GPU's free memory; other values unchanged."""
    return value.full_tensor().detach().cpu() if isinstance(value, DTensor) else value


def _own_shard(value: Any, parameter: Tensor) -> Any:
    """This rank's shard of a whole tensor with the parameter's shape; other values unchanged."""
    whole = isinstance(value, Tensor) and not isinstance(value, DTensor) and value.shape == parameter.shape
    if not whole or not isinstance(parameter, DTensor):
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    # No communication is needed, since each rank has the whole tensor. A view would keep it in memory, so clone.
    return distribute_tensor(cast(Tensor, value).to(parameter.device), mesh, placements, src_data_rank=None).clone()
