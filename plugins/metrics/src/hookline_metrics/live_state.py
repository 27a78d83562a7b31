"""`LiveState`: the run's current step, epoch and metrics. The training thread writes it, other threads read it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

__all__ = ["EpochKind", "LiveState"]

EpochKind = Literal["train", "rollout", "warm start"]
"""Epochs of one kind take about the same time. `train` has no rollouts, `rollout` has them, and `warm start` are the
epochs before the first rollout of a run that has a rollout worker."""

MAX_EPOCH_ENDS: Final = 1000


class LiveState:
    """Plain fields without a lock. Each field is always whole, but two fields may be from different steps."""

    __slots__ = (
        "complete_epochs",
        "epoch",
        "epoch_ends",
        "epoch_kind",
        "lesson",
        "numbers",
        "phase",
        "reward",
        "start_epoch",
        "start_step",
        "step",
        "thread",
        "total_epochs",
        "total_steps",
    )

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        """The training thread. When it has ended, the run is over, even if no event said so."""
        self.start_step = 0
        """The step that this process started at. Above 0 in a resumed run."""
        self.start_epoch = 0
        self.step = 0
        self.epoch: int | None = None
        """None before the first epoch."""
        self.complete_epochs = 0
        """Epochs of the whole run, including those before a resume."""
        self.epoch_kind: EpochKind = "train"
        """The kind of the current epoch."""
        self.epoch_ends: deque[float] = deque(maxlen=MAX_EPOCH_ENDS)
        """When the latest epochs of the current kind ended, by `time.monotonic()`."""
        self.total_epochs: int | None = None
        self.total_steps: int | None = None
        self.phase = "other"
        self.lesson: str | None = None
        self.reward: float | None = None
        self.numbers: Mapping[str, Any] = {}
        """The latest report of a step or a validation."""

    def enter_epochs(self, kind: EpochKind) -> None:
        """Epochs from now on are of this kind."""
        if kind != self.epoch_kind:
            self.epoch_kind, self.epoch_ends = kind, deque(maxlen=MAX_EPOCH_ENDS)

    def end_epoch(self, epoch: int, now: float) -> None:
        """Record that an epoch is complete."""
        self.complete_epochs = epoch + 1
        self.epoch_ends.append(now)
