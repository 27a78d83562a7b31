"""`hookline.hooks.Hook` on a trainer: asked after every rollout of the trainer's worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.hooks import Hook
from hookline.training.errors import TrainingError

if TYPE_CHECKING:
    from hookline.training.trainer import Trainer

__all__ = ["register_rollout_hook"]


def register_rollout_hook(trainer: Trainer, hook: Hook) -> None:
    """Have the trainer's worker ask a hook."""
    if trainer.worker is None:
        raise TrainingError(
            f"{type(hook).__name__} is asked after rollouts, and this trainer makes none: it learns from a dataset. "
            "A plugin with post_training_step or on_epoch_end would be called"
        )
    trainer.worker.register_hook(hook)
