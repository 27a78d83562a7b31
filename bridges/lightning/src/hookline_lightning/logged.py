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
        self._seen: dict[str, Any] = {}

    def take(self, trainer: Trainer) -> dict[str, float]:
        """What was logged since the last call.

        Lightning makes a new tensor whenever a number is logged, so that an equal number that was logged again is new.
        """
        logged = trainer.logged_metrics
        new = {name: value for name, value in logged.items() if self._seen.get(name) is not value}
        self._seen = dict(logged)
        return {name: float(value) for name, value in new.items()}


def loss_of(outputs: Any) -> float:
    """The loss that a training or validation step returned; NaN where it returned none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else math.nan
