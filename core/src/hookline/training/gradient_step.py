"""One gradient step: the losses on a minibatch, their sum's gradient over all ranks, and the optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookline.training.config import OptimizerConfig
from hookline.training.errors import NonFiniteLossError
from hookline.training.experience import Experience
from hookline.training.flat_parameters import FlatParameters
from hookline.training.losses.loss import Loss, LossTerm
from hookline.training.losses.shared import SharedLossData
from hookline.training.progress import remaining
from hookline.training.ranks import Ranks
from hookline_hookspecs import TrainerState

__all__ = ["GradientStep"]


class GradientStep:
    """Takes steps with one policy, its losses and its optimizer."""

    def __init__(self, policy: Any, losses: Sequence[Loss], config: OptimizerConfig, ranks: Ranks) -> None:
        self.policy = policy
        self.losses = losses
        self.config = config
        self.ranks = ranks
        self.parameters = FlatParameters(policy)
        self.optimizer = torch.optim.Adam(
            [self.parameters.values],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def sharing(self, losses: Sequence[Loss], config: OptimizerConfig) -> GradientStep:
        """Steps with other losses, learning rate and norm, but the same policy, optimizer and ranks."""
        other = copy.copy(self)
        other.losses, other.config = losses, config
        return other

    def take(
        self, batch: Mapping[str, Tensor] | None, state: TrainerState, experience: Experience | None = None
    ) -> dict[str, float]:
        """Take a step, and return its metrics.

        :param batch: this rank's rows; None when a last, small batch left none for it.
        """
        parameters, ranks = self.parameters, self.ranks
        shared = SharedLossData(state, self.policy, batch, experience)
        active = [loss for loss in self.losses if loss.schedule.applies_now(state)]
        terms = [_no_term() if batch is None else loss.run_train(shared) for loss in active]
        total, values = self._join(active, terms)

        parameters.zero_gradient()
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        ranks.average_(parameters.gradient)
        norm = parameters.gradient.norm()

        # All numbers in one go: each call that brings one out of torch costs as much as a layer.
        numbers = torch.stack([*values, norm, *shared.stats.values()]).tolist()
        names = [*(loss.name for loss in active), "grad_norm", *shared.stats]
        learning_rate = self.config.learning_rate * (remaining(state) if self.config.anneal else 1.0)
        metrics = {
            "train/loss": sum((loss.weight * n for loss, n in zip(active, numbers, strict=False)), start=0.0),
            **{f"train/{name}": number for name, number in zip(names, numbers, strict=True)},
            "train/learning_rate": learning_rate,
        }
        self._check_finite(metrics, active, state)
        if active:
            self._optimize(metrics["train/grad_norm"], learning_rate)
        return metrics

    def _join(self, active: Sequence[Loss], terms: Sequence[LossTerm]) -> tuple[Tensor, list[Tensor]]:
        """What to differentiate on this rank, and the mean of each loss over all ranks."""
        if self.ranks.world_size == 1:
            values = [term.value for term in terms]
            total = torch.zeros(())
            for loss, value in zip(active, values, strict=True):
                total = total.add(value, alpha=loss.weight)
            return total, [value.detach() for value in values]
        # Ranks may hold different numbers of tokens: the mean over all is not the mean of their means.
        counts = torch.tensor([float(term.size) for term in terms])
        values_here = torch.stack([term.value for term in terms]) if terms else torch.zeros(0)
        sums = self.ranks.sum(torch.cat([values_here.detach() * counts, counts]))
        means = sums[: len(terms)] / sums[len(terms) :].clamp(min=1)
        share = counts / sums[len(terms) :].clamp(min=1) * self.ranks.world_size
        weights = torch.tensor([loss.weight for loss in active])
        return (values_here * share * weights).sum(), list(means)

    def _check_finite(self, metrics: Mapping[str, float], active: Sequence[Loss], state: TrainerState) -> None:
        for name in (*(f"train/{loss.name}" for loss in active), "train/grad_norm"):
            if not math.isfinite(metrics[name]):
                what = "the norm of the gradient" if name == "train/grad_norm" else f"loss {name[6:]!r}"
                raise NonFiniteLossError(
                    f"{what} is {metrics[name]} at step {state.step} of epoch {state.epoch}. The weights are still "
                    "those of the step before. Look for such values in the data and rewards, or lower "
                    "optimizer.learning_rate"
                )

    def _optimize(self, norm: float, learning_rate: float) -> None:
        limit = self.config.max_grad_norm
        if limit is not None and norm > limit:
            self.parameters.gradient.mul_(limit / (norm + 1e-6))
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()


def _no_term() -> LossTerm:
    return LossTerm(torch.zeros(()), 0)
