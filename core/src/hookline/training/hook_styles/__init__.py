"""The styles in which a hook may be written, each turned into a plugin by a module of its own.

The trainer knows of none of them: it hands over what `add_hook` was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.hooks import Hook
from hookline.training.hook_styles.rollout_hook import register_rollout_hook
from hookline.training.hook_styles.trainer_hook import TrainerHook, register_trainer_hook

if TYPE_CHECKING:
    from hookline.training.trainer import Trainer

__all__ = ["register_hook"]


def register_hook(trainer: Trainer, hook: Any) -> None:
    """Register a hook of any style with the trainer's plugins."""
    if isinstance(hook, TrainerHook):
        register_trainer_hook(trainer, hook)
    elif isinstance(hook, Hook):
        register_rollout_hook(trainer, hook)
    else:
        if hasattr(hook, "use_emit"):
            hook.use_emit(trainer.plugins.emit)
        trainer.plugins.register(hook)
