"""What Lightning's entry point `lightning.pytorch.callbacks_factory` finds: one callback for every `Trainer`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule

from hookline.session import is_bridge_disabled
from hookline_lightning.callback import HooklineCallback

__all__ = ["InstalledCallback", "callbacks"]


def callbacks() -> list[Callback]:
    """The callbacks that a new trainer gets; none where the user has turned this bridge off."""
    return [] if is_bridge_disabled("lightning") else [InstalledCallback()]


class InstalledCallback(Callback):
    """Becomes a `HooklineCallback` when a fit begins, unless the trainer has one that was given by hand.

    It is no `HooklineCallback` from the start: Lightning refuses two that are saved under one name. A trainer without
    logs and checkpoints (`fast_dev_run`, `barebones`) gets none.
    """

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        has_one = any(isinstance(callback, HooklineCallback) for callback in trainer.callbacks)
        if stage == "fit" and not (has_one or trainer.fast_dev_run or trainer.barebones):
            callback = HooklineCallback()
            trainer.callbacks[trainer.callbacks.index(self)] = callback
            callback.setup(trainer, pl_module, stage)
