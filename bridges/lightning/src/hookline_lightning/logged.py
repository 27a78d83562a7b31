"""The numbers that a module has logged since they were last read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer

__all__ = ["LoggedNumbers", "loss_of"]


class LoggedNumbers:
    """Reads `trainer.logged_metrics`, which keeps all that was ever logged, and gives what is new in it."""

    def __init__(self) -> None:
        self._seen: dict[str, torch.Tensor] = {}
        self._taken: dict[str, tuple[int, float]] = {}

    def take(self, trainer: Trainer) -> dict[str, float]:
        """What was logged since the last call.

        A number that is logged again has memory of its own, since that of the last one is kept here. Means over an
        epoch are computed anew when they are read: at one step an equal number is taken once.
        """
        logged, step = trainer.logged_metrics, trainer.global_step
        new = {name: value.item() for name, value in logged.items() if not self._has_seen(name, value)}
        self._seen = dict(logged)
        taken = {name: value for name, value in new.items() if self._taken.get(name) != (step, value)}
        self._taken.update((name, (step, value)) for name, value in taken.items())
        return taken

    def forget_values(self) -> None:
        """Take an equal number at the same step again: a validation begins, maybe with no step since the last one."""
        self._taken = {}

    def _has_seen(self, name: str, value: torch.Tensor) -> bool:
        seen = self._seen.get(name)
        return seen is not None and seen.data_ptr() == value.data_ptr()


def loss_of(outputs: Any) -> float:
    """The loss that a training or validation step returned; NaN where it returned none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else math.nan
