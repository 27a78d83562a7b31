"""One gradient step: the losses on a minibatch, their sum's gradient over all ranks, and the optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookline.training.config import OptimizerConfig
from hookline.training.errors import NonFiniteLossError
from hookline.training.experience import Experience
from hookline.training.flat_adam import FlatAdam
from hookline.training.flat_parameters import FlatParameters
from hookline.training.losses.loss import Loss, LossTerm
from hookline.training.losses.shared import Evaluation, SharedLossData
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
        by_hand = getattr(policy, "evaluation_by_hand", None)
        self._by_hand: Evaluation | None = None if by_hand is None else by_hand()
        self.optimizer = FlatAdam(
            self.parameters.values, config.learning_rate, config.betas, config.eps, config.weight_decay
        )

    def sharing(self, losses: Sequence[Loss], config: OptimizerConfig) -> GradientStep:
        """Steps with other losses, learning rate and norm, but the same policy, optimizer and ranks."""
        other = copy.copy(self)
        other.losses, other.config = losses, config
        return other

    @np.errstate(all="ignore")  # losses in NumPy are as quiet about infinity as those in torch: it is looked for below
    def take(
        self, batch: Mapping[str, Tensor] | None, state: TrainerState, experience: Experience | None = None
    ) -> dict[str, float]:
        """Take a step, and return its metrics.

        :param batch: this rank's rows; None when a last, small batch left none for it.
        """
        parameters, ranks = self.parameters, self.ranks
        shared = SharedLossData(state, self.policy, batch, experience, self._by_hand)
        active = [loss for loss in self.losses if loss.schedule.applies_now(state)]
        terms = [_no_term() if batch is None else loss.run_train(shared) for loss in active]
        values, scales = self._join(active, terms)

        parameters.zero_gradient()
        _differentiate(terms, scales)
        for pull_back in shared.pull_backs:
            pull_back()
        ranks.average_(parameters.gradient)
        norm = torch.linalg.vector_norm(parameters.gradient).item()

        numbers = [*values, norm, *map(float, shared.stats.values())]
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

    def _join(self, active: Sequence[Loss], terms: Sequence[LossTerm]) -> tuple[list[float], list[float]]:
        """The mean of each loss over all ranks, and what to multiply it by before it is differentiated on this one."""
        values = [term.value.item() for term in terms]
        weights = [loss.weight for loss in active]
        if self.ranks.world_size == 1:
            return values, weights
        # Ranks may hold different numbers of tokens: the mean over all is not the mean of their means.
        counts = [float(term.size) for term in terms]
        here = torch.tensor([[value * count for value, count in zip(values, counts, strict=True)], counts])
        sums, totals = self.ranks.sum(here).tolist()
        totals = [max(total, 1.0) for total in totals]
        means = [part / total for part, total in zip(sums, totals, strict=True)]
        shares = [count / total * self.ranks.world_size for count, total in zip(counts, totals, strict=True)]
        return means, [weight * share for weight, share in zip(weights, shares, strict=True)]

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


def _differentiate(terms: Sequence[LossTerm], scales: Sequence[float]) -> None:
    """Add the gradient of each loss, times its scale, to the leaves that it depends on."""
    by_autograd = []
    for (value, _, slopes), scale in zip(terms, scales, strict=True):
        if slopes and all(tensor.is_leaf for tensor, _ in slopes):
            for tensor, slope in slopes:
                scaled = slope if scale == 1 else slope * scale
                tensor.grad = scaled if tensor.grad is None else tensor.grad + scaled
        elif value.requires_grad:
            by_autograd.append(value * scale)
    if by_autograd:
        torch.stack(by_autograd).sum().backward()  # type: ignore[no-untyped-call]
