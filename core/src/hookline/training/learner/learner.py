"""`Learner`: the losses on a minibatch, the gradient of their sum over all ranks, and the optimizer.

The learner knows nothing of events, epochs and rollouts; the trainer knows nothing of how a gradient is made.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hookline.training.config import LearnerConfig, OptimizerConfig
from hookline.training.errors import NonFiniteLossError, TrainingError
from hookline.training.experience import Experience
from hookline.training.learner.optimizers import build_optimizer, scheduled_learning_rate
from hookline.training.losses.loss import Loss, SharedLossData
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

__all__ = ["Learner", "choose_device"]

Batch = Mapping[str, Tensor]


class Gradient(NamedTuple):
    """What one minibatch gives, besides the gradients that lie in the parameters."""

    values: Sequence[float] | Tensor
    """The mean of each loss."""
    norm: float | Tensor
    """The norm of the gradient of their weighted sum."""
    stats: Mapping[str, float | Tensor]
    """Numbers that losses report."""


class Update(Protocol):
    """One way from a minibatch to new weights: by autograd, or by hand."""

    optimizer: Any

    def takes(self, losses: Sequence[Loss]) -> bool:
        """Whether it can compute the gradient of these losses."""

    def gradient(
        self, losses: Sequence[Loss], batch: Batch | None, state: TrainerState, experience: Experience | None
    ) -> Gradient:
        """Put the gradient of the weighted sum of losses into the parameters."""

    def apply(self, norm: float | Tensor, max_norm: float | None) -> None:
        """Clip the gradient, and have the optimizer take its step."""


class Learner:
    """Takes gradient steps with one policy, its losses and its optimizer, on one device.

    :param policy: moved to the device, where it stays.
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
        if config.gradient_checkpointing:
            _enable_gradient_checkpointing(policy)
        by_hand: Update | None = None
        if self.ranks.world_size == 1 and self.device.type == "cpu" and config == LearnerConfig(device=config.device):
            by_hand = _by_hand(policy, losses, optimizer)
        self._update: Update = by_hand or AutogradUpdate(self.policy, optimizer, config, self.ranks)

    @property
    def optimizer(self) -> Any:
        """A `torch.optim` optimizer, or one with its attributes and state dict."""
        return self._update.optimizer

    def sharing(self, losses: Sequence[Loss], optimizer: OptimizerConfig) -> Learner:
        """A learner with other losses, learning rate and clipping, and the same policy and optimizer."""
        other = copy.copy(self)
        other.losses, other.optimizer_config = losses, optimizer
        if not self._update.takes(losses):
            other._update = AutogradUpdate(self.policy, optimizer, self.config, self.ranks, self.optimizer)
        return other

    def step(self, batch: Batch | None, state: TrainerState, experience: Experience | None = None) -> dict[str, float]:
        """Take a gradient step, and return its metrics.

        :param batch: this rank's rows; None when a last, small batch left none for it.
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
        return metrics

    @torch.no_grad()
    def validate(self, batch: Batch | None, state: TrainerState) -> Tensor:
        """Each loss summed over all ranks' rows or tokens, and how many there are: (2, losses)."""
        found = torch.zeros(2, len(self.losses), device=self.device)
        if batch is not None:
            shared = SharedLossData(state, self.policy, self.to_device(batch))
            with autocast(self.device, self.config.precision):
                for index, loss in enumerate(self.losses):
                    value = loss.train(shared)
                    if value is not None:
                        count = loss.count(shared.batch)
                        found[0, index], found[1, index] = value * count, count
        return self.ranks.sum(found)

    def to_device(self, batch: Batch) -> dict[str, Tensor]:
        """The tensors on the learner's device; those that are there already as they are."""
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}


class AutogradUpdate:
    """The plain path: torch's autograd and any `torch.optim` optimizer, on any device."""

    def __init__(
        self,
        policy: nn.Module,
        optimizer_config: OptimizerConfig,
        config: LearnerConfig,
        ranks: Ranks,
        optimizer: Any | None = None,
    ) -> None:
        self._policy = policy
        self._config = config
        self._ranks = ranks
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise TrainingError(f"the policy, a {type(policy).__name__}, has no parameter that can be trained")
        self.optimizer = optimizer or build_optimizer(self._parameters, optimizer_config)

    def takes(self, losses: Sequence[Loss]) -> bool:
        del losses
        return True

    def gradient(
        self, losses: Sequence[Loss], batch: Batch | None, state: TrainerState, experience: Experience | None
    ) -> Gradient:
        device = self._parameters[0].device
        self.optimizer.zero_grad()
        parts = [] if batch is None else list(_in_parts(batch, self._config.micro_batch_rows))
        counts = torch.zeros(max(len(parts), 1), len(losses), device=device)
        for index, part in enumerate(parts):
            for column, loss in enumerate(losses):
                counts[index, column] = loss.count(part)
        # Parts and ranks may hold different numbers of tokens: the mean over all is not the mean of their means.
        own_totals = counts.sum(0)
        totals = self._ranks.sum(own_totals.clone()).clamp(min=1)
        values = torch.zeros(len(losses), device=device)
        stats: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            shared = SharedLossData(state, self._policy, part, experience, minibatch=batch)
            total = torch.zeros((), device=device)
            for column, loss in enumerate(losses):
                with autocast(device, self._config.precision):
                    value = loss.run_train(shared)
                share = counts[index, column] / totals[column]
                total = total + loss.weight * share * value
                values[column] += share * value.detach()
                own_share = counts[index, column] / own_totals[column].clamp(min=1)
                for name, number in shared.take_stats().items():
                    stats[name] = stats.get(name, 0) + own_share * number
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
        self._ranks.sum_gradients(self._parameters)
        return Gradient(self._ranks.sum(values), get_total_norm(self._gradients()), stats)

    def apply(self, norm: float | Tensor, max_norm: float | None) -> None:
        if max_norm is not None:
            clip_grads_with_norm_(self._parameters, max_norm, torch.as_tensor(norm))
        self.optimizer.step()

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]


def _by_hand(policy: nn.Module, losses: Sequence[Loss], optimizer: OptimizerConfig) -> Update | None:
    """The hand-written step, where that module is there and says that it fits."""
    try:
        from hookline.training.learner.fused_ppo import fused_ppo
    except ModuleNotFoundError:
        return None
    return fused_ppo(policy, losses, optimizer)


def choose_device(name: str) -> torch.device:
    """The device that a config names; for `auto` CUDA, else Apple's GPU, else the CPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((kind for kind, is_there in available.items() if is_there), "cpu"))
    device = torch.device(name)
    if not available.get(device.type, True):
        raise TrainingError(
            f'learner.device is "{name}", and torch finds none on this machine: "auto" takes what there is'
        )
    return device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16 where the precision is `bf16`; the weights stay as they are."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def _in_parts(batch: Batch, rows: int | None) -> Iterator[Batch]:
    """The minibatch in parts of so many rows, or in one."""
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
    """Python numbers; tensors together, since each read of its own would wait for the device."""
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
                f"{what} is {metrics[name]} at step {state.step} of epoch {state.epoch}. The weights are still "
                "those of the step before. Look for such values in the data and rewards, or lower "
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
