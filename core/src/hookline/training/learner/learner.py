"""`Learner`: the losses on a minibatch, the gradient of their sum over all ranks, and the optimizer.

The learner does not depend on events, epochs or rollouts. How a gradient is computed is hidden from the trainer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from hookline.session.opening import number_in_environment
from hookline.training.config import LearnerConfig, OptimizerConfig
from hookline.training.errors import NonFiniteLossError, TrainingError
from hookline.training.experience import Experience
from hookline.training.learner.data_parallel import Batch, DataParallel, data_parallel
from hookline.training.learner.optimizers import build_optimizer, scheduled_learning_rate
from hookline.training.losses.loss import Loss, SharedLossData
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

__all__ = ["Learner", "choose_device"]

Result = TypeVar("Result")


class Gradient(NamedTuple):
    """The results of one minibatch, besides the gradients stored in the parameters."""

    values: Sequence[float] | Tensor
    """The mean of each loss."""
    norm: float | Tensor
    """The norm of the gradient of their weighted sum."""
    stats: Mapping[str, float | Tensor]
    """Numbers that the losses report."""


class Update(Protocol):
    """Computes and applies the gradient of a minibatch, with autograd or by hand."""

    optimizer: Any

    def supports(self, losses: Sequence[Loss]) -> bool:
        """Whether it can compute the gradient of these losses."""

    def gradient(
        self, losses: Sequence[Loss], batch: Batch | None, state: TrainerState, experience: Experience | None
    ) -> Gradient:
        """Store the gradient of the weighted sum of losses in the parameters."""

    def apply(self, norm: float | Tensor, max_norm: float | None) -> None:
        """Clip the gradient and take the optimizer step."""


class Learner:
    """Takes gradient steps with one policy, its losses and its optimizer, on one device.

    :param policy: moved to the device. With `data_parallel = "fsdp2"` each rank keeps a shard of it.
    :param losses: each receives this policy in `attach_policy`, before training.
    """

    def __init__(
        self,
        policy: nn.Module,
        losses: Sequence[Loss],
        optimizer: OptimizerConfig,
        config: LearnerConfig | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config = config or LearnerConfig()
        self.ranks = ranks or Ranks()
        self.device = choose_device(config.device)
        self.policy = policy.to(self.device)
        self.losses = losses
        self.optimizer_config = optimizer
        if self.device.type == "cpu":
            _use_faster_layers(policy)
        if config.gradient_checkpointing:
            _enable_gradient_checkpointing(policy)
        for loss in losses:
            loss.attach_policy(policy)
        self._parallel = data_parallel(config.data_parallel, policy, self.ranks)
        by_hand: Update | None = None
        if self.ranks.world_size == 1 and self.device.type == "cpu" and config == LearnerConfig(device=config.device):
            by_hand = _by_hand(policy, losses, optimizer)
        self._update: Update = by_hand or AutogradUpdate(policy, optimizer, config, self._parallel)
        self._parallel.attach(self.optimizer)

    @property
    def optimizer(self) -> Any:
        """A `torch.optim` optimizer, or one with its attributes and state dict."""
        return self._update.optimizer

    def sharing(self, losses: Sequence[Loss], optimizer: OptimizerConfig) -> Learner:
        """A learner with the same policy and optimizer, but other losses, learning rate and clipping."""
        other = copy.copy(self)
        other.losses, other.optimizer_config = losses, optimizer
        if not self._update.supports(losses):
            other._update = AutogradUpdate(self.policy, optimizer, self.config, self._parallel, self.optimizer)
        return other

    def step(self, batch: Batch | None, state: TrainerState, experience: Experience | None = None) -> dict[str, float]:
        """Take a gradient step and return its metrics.

        :param batch: this rank's rows; None when a small last batch has no rows for this rank.
        """
        active = [loss for loss in self.losses if loss.schedule.applies_now(state)]
        rows = None if batch is None else self.to_device(batch)
        values, norm, stats = self._update.gradient(active, rows, state, experience)
        learning_rate = scheduled_learning_rate(self.optimizer_config, state)
        metrics = _metrics(active, values, norm, stats, learning_rate)
        _check_finite(metrics, active, state)
        if active:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self._update.apply(norm, self.optimizer_config.max_grad_norm)
            self._parallel.weights_changed()
        return metrics

    @torch.no_grad()
    def validate(self, batch: Batch | None, state: TrainerState) -> Tensor:
        """The sum of each loss over all ranks' rows or tokens, and their count: (2, losses)."""
        parts = [] if batch is None else [self.to_device(batch)]
        passes = [*parts, *self._parallel.idle_parts(parts)]
        found = [self.run(partial(self._sums, part, state)) for part in passes][: len(parts)]
        return self.ranks.sum(found[0] if found else torch.zeros(2, len(self.losses), device=self.device))

    def _sums(self, batch: Batch, state: TrainerState) -> Tensor:
        """The sum of each loss over a batch, and its count."""
        found = torch.zeros(2, len(self.losses), device=self.device)
        shared = SharedLossData(state, self.policy, batch)
        with autocast(self.device, self.config.precision):
            for index, loss in enumerate(self.losses):
                value = loss.train(shared)
                if value is not None:
                    count = loss.count(batch)
                    found[0, index], found[1, index] = value * count, count
        return found

    def run(self, compute: Callable[[], Result]) -> Result:
        """Call a function that computes with the policy. With shards this and the next three are collective."""
        return self._parallel.run(compute)

    def agree(self) -> None:
        """Copy the weights of rank 0 to all ranks."""
        self._parallel.agree()

    def weights(self) -> dict[str, Any]:
        """The policy's state dict with whole tensors, on every rank."""
        return self._parallel.weights()

    def gather(self) -> None:
        """Make the state dicts of policy and optimizer hold whole tensors on rank 0, until the next step."""
        self._parallel.gather()

    def to_device(self, batch: Batch) -> dict[str, Tensor]:
        """The batch on the learner's device."""
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}


class AutogradUpdate:
    """The plain path: torch's autograd and any `torch.optim` optimizer, on any device."""

    def __init__(
        self,
        policy: nn.Module,
        optimizer_config: OptimizerConfig,
        config: LearnerConfig,
        parallel: DataParallel,
        optimizer: Any | None = None,
    ) -> None:
        self._policy = policy
        self._config = config
        self._parallel = parallel
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise TrainingError(f"the policy, a {type(policy).__name__}, has no parameter that can be trained")
        self.optimizer = optimizer or build_optimizer(self._parameters, optimizer_config)

    def supports(self, losses: Sequence[Loss]) -> bool:
        del losses
        return True

    def gradient(
        self, losses: Sequence[Loss], batch: Batch | None, state: TrainerState, experience: Experience | None
    ) -> Gradient:
        device = self._parameters[0].device
        self.optimizer.zero_grad()
        parts = [] if batch is None else list(_in_parts(batch, self._config.micro_batch_rows))
        passes = [*parts, *self._parallel.idle_parts(parts)]
        counts = torch.zeros(len(passes), len(losses), device=device)
        for index, part in enumerate(parts):
            for column, loss in enumerate(losses):
                counts[index, column] = loss.count(part)
        # Weight by count: parts and ranks may hold different numbers of tokens.
        own_totals = counts.sum(0)
        shares = counts / self._parallel.ranks.sum(own_totals.clone()).clamp(min=1)
        own_shares = counts / own_totals.clamp(min=1)
        values = torch.zeros(len(losses), device=device)
        stats: dict[str, Tensor] = {}

        def weighted_sum(index: int) -> Tensor:
            """The part's contribution to the weighted sum of losses."""
            shared = SharedLossData(state, self._policy, passes[index], experience, minibatch=batch)
            total = torch.zeros((), device=device)
            for column, loss in enumerate(losses):
                with autocast(device, self._config.precision):
                    value = loss.run_train(shared)
                total = total + loss.weight * shares[index, column] * value
                values[column] += shares[index, column] * value.detach()
                for name, number in shared.take_stats().items():
                    stats[name] = stats.get(name, 0) + own_shares[index, column] * number
            return total

        for index in range(len(passes)):
            total = self._parallel.run(partial(weighted_sum, index))
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
        self._parallel.sum_gradients(self._parameters)
        values = self._parallel.ranks.sum(values)
        return Gradient(values, self._parallel.norm(self._gradients()), stats if parts else {})

    def apply(self, norm: float | Tensor, max_norm: float | None) -> None:
        if max_norm is not None:
            clip_grads_with_norm_(self._parameters, max_norm, torch.as_tensor(norm))
        self.optimizer.step()

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]


def _by_hand(policy: nn.Module, losses: Sequence[Loss], optimizer: OptimizerConfig) -> Update | None:
    """The hand-written step, if the module is present and the step is equivalent."""
    try:
        from hookline.training.learner.fused_ppo import fused_ppo
    except ModuleNotFoundError as error:
        if error.name != "hookline.training.learner.fused_ppo":
            raise  # the module is there, and imports another that is not
        return None
    return fused_ppo(policy, losses, optimizer)


def _use_faster_layers(policy: nn.Module) -> None:
    """Have oneDNN compute linear layers, if the module is present and this is faster."""
    try:
        from hookline.training.learner.onednn import use_onednn
    except ModuleNotFoundError as error:
        if error.name != "hookline.training.learner.onednn":
            raise
        return
    use_onednn(policy)


def choose_device(name: str) -> torch.device:
    """The device that a config names. `auto` prefers CUDA, then Apple's GPU, then the CPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((kind for kind, is_there in available.items() if is_there), "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise TrainingError(f'learner.device is "{name}": it must be auto, cpu, cuda, cuda:1 or mps') from error
    if not available.get(device.type, True):
        raise TrainingError(
            f'learner.device is "{name}", but torch finds none on this machine: "auto" selects an available device'
        )
    return _own_gpu() if device == torch.device("cuda") else device


def _own_gpu() -> torch.device:
    """The GPU with the local rank of this process. NCCL needs one GPU per process."""
    device = torch.device("cuda", number_in_environment("LOCAL_RANK", 0))
    torch.cuda.set_device(device)
    return device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Compute matrix products in bfloat16 if the precision is `bf16`. The weights keep their dtype."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def _in_parts(batch: Batch, rows: int | None) -> Iterator[Batch]:
    """The minibatch in parts of at most `rows` rows; in one part for None."""
    count = len(next(iter(batch.values())))
    if rows is None or rows >= count:
        yield batch
        return
    for start in range(0, count, rows):
        yield {name: tensor[start : start + rows] for name, tensor in batch.items()}


def _metrics(
    active: Sequence[Loss],
    values: Sequence[float] | Tensor,
    norm: float | Tensor,
    stats: Mapping[str, float | Tensor],
    learning_rate: float,
) -> dict[str, float]:
    numbers = _to_host([*values, norm, *stats.values()])
    names = [*(loss.name for loss in active), "grad_norm", *stats]
    return {
        "train/loss": sum((loss.weight * n for loss, n in zip(active, numbers, strict=False)), start=0.0),
        **{f"train/{name}": number for name, number in zip(names, numbers, strict=True)},
        "train/learning_rate": learning_rate,
    }


def _to_host(numbers: Sequence[float | Tensor]) -> list[float]:
    """Python numbers. All tensors are read at once, since each read waits for the device."""
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    if not tensors:
        return [float(number) for number in numbers]
    read = iter(torch.stack([tensor.detach().float() for tensor in tensors]).tolist())
    return [next(read) if isinstance(number, Tensor) else float(number) for number in numbers]


def _check_finite(metrics: Mapping[str, float], active: Sequence[Loss], state: TrainerState) -> None:
    for name in (*(f"train/{loss.name}" for loss in active), "train/grad_norm"):
        if not math.isfinite(metrics[name]):
            what = "the norm of the gradient" if name == "train/grad_norm" else f"loss {name[6:]!r}"
            raise NonFiniteLossError(
                f"{what} is {metrics[name]} at step {state.step} of epoch {state.epoch}. This step did not "
                "change the weights. Check the data and rewards for such values, or lower "
                "optimizer.learning_rate"
            )


def _enable_gradient_checkpointing(policy: nn.Module) -> None:
    enable = getattr(policy, "gradient_checkpointing_enable", None)
    if not callable(enable):
        raise TrainingError(
            f"learner.gradient_checkpointing: the policy, a {type(policy).__name__}, has no "
            "gradient_checkpointing_enable(), as Hugging Face's models and TransformerPolicy have"
        )
    enable()
