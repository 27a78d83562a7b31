"""A pass over held-out examples, announced batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from hookline.session import Session
from hookline.training.examples import Batches
from hookline.training.learner import Learner

__all__ = ["validate"]


def validate(session: Session, batches: Batches, learner: Learner, *, is_last_step: bool) -> float:
    """The weighted sum of the losses, each the mean over what all ranks hold."""
    was_training = learner.policy.training
    learner.policy.eval()
    session.begin_validation(is_last_step=is_last_step)
    totals = torch.zeros(2, len(learner.losses), device=learner.device)
    try:
        for index, batch in enumerate(batches.go_through(None)):
            session.begin_validation_step(index)
            sums_and_counts = learner.validate(batch, session.state)
            totals += sums_and_counts
            session.end_validation_step(index, _weighted(learner, sums_and_counts))
    finally:
        learner.policy.train(was_training)
    average = _weighted(learner, totals)
    session.end_validation(average, is_last_step=is_last_step)
    return average


def _weighted(learner: Learner, sums_and_counts: Tensor) -> float:
    means = (sums_and_counts[0] / sums_and_counts[1].clamp(min=1)).tolist()
    return float(sum(loss.weight * mean for loss, mean in zip(learner.losses, means, strict=True)))
