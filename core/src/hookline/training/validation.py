"""A pass over held-out examples, announced batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hookline.session import Session
from hookline.training.examples import Batches
from hookline.training.gradient_step import GradientStep
from hookline.training.losses.shared import SharedLossData

__all__ = ["validate"]


@torch.no_grad()
def validate(session: Session, batches: Batches, step: GradientStep, *, is_last_step: bool) -> float:
    """The weighted sum of the losses, each the mean over what all ranks hold."""
    policy: Any = step.policy
    was_training = policy.training
    policy.eval()
    session.begin_validation(is_last_step=is_last_step)
    totals = torch.zeros(2, len(step.losses))
    try:
        for index, batch in enumerate(batches.go_through(None)):
            session.begin_validation_step(index)
            sums_and_counts = step.ranks.sum(_sums_and_counts(session, batch, step))
            totals += sums_and_counts
            session.end_validation_step(index, _weighted(step, sums_and_counts))
    finally:
        policy.train(was_training)
    average = _weighted(step, totals)
    session.end_validation(average, is_last_step=is_last_step)
    return average


def _sums_and_counts(session: Session, batch: Mapping[str, Tensor] | None, step: GradientStep) -> Tensor:
    """Each loss summed over this rank's rows or tokens, and how many there are."""
    found = torch.zeros(2, len(step.losses))
    if batch is not None:
        shared = SharedLossData(session.state, step.policy, batch)
        for index, loss in enumerate(step.losses):
            term = loss.train(shared)
            if term is not None:
                found[0, index], found[1, index] = term.value * term.size, float(term.size)
    return found


def _weighted(step: GradientStep, sums_and_counts: Tensor) -> float:
    means = (sums_and_counts[0] / sums_and_counts[1].clamp(min=1)).tolist()
    return float(sum(loss.weight * mean for loss, mean in zip(step.losses, means, strict=True)))
