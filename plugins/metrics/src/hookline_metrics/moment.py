"""`Moment`: where the run stands. The training thread writes it, others read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Moment"]


class Moment:
    """Plain fields. A reader may see two of different moments, and none that is half written."""

    __slots__ = (
        "epoch",
        "lesson",
        "numbers",
        "phase",
        "reward",
        "start_epoch",
        "start_step",
        "step",
        "total_epochs",
        "total_steps",
    )

    def __init__(self) -> None:
        self.start_step = 0
        """The step that this process began with: later than 0 where it resumed a run."""
        self.start_epoch = 0
        self.step = 0
        self.epoch: int | None = None
        """None before the first epoch."""
        self.total_epochs: int | None = None
        self.total_steps: int | None = None
        self.phase = "other"
        self.lesson: str | None = None
        self.reward: float | None = None
        self.numbers: Mapping[str, Any] = {}
        """The latest report of a step or a validation."""
