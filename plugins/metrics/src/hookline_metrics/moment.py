"""`Moment`: where the run stands. The training thread writes it, others read it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Literal

__all__ = ["EpochKind", "Moment"]

EpochKind = Literal["train", "rollout", "warm start"]
"""Epochs of one kind take about as long as each other: without rollouts, with them, and those before the first rollout
of a run that has a rollout worker, of which there may be any number."""

MOST_ENDS: Final = 1000


class Moment:
    """Plain fields. A reader may see two of different moments, and none that is half written."""

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
        """The training thread. When it has ended, so has the run, whether that was announced or not."""
        self.start_step = 0
        """The step that this process began with: later than 0 where it resumed a run."""
        self.start_epoch = 0
        self.step = 0
        self.epoch: int | None = None
        """None before the first epoch."""
        self.complete_epochs = 0
        """Those of the run, with those of the processes before this one."""
        self.epoch_kind: EpochKind = "train"
        """Of the epoch that the run is in."""
        self.epoch_ends: deque[float] = deque(maxlen=MOST_ENDS)
        """When the latest epochs ended, all of one kind, in seconds of a monotonic clock."""
        self.total_epochs: int | None = None
        self.total_steps: int | None = None
        self.phase = "other"
        self.lesson: str | None = None
        self.reward: float | None = None
        self.numbers: Mapping[str, Any] = {}
        """The latest report of a step or a validation."""

    def enter_epochs(self, kind: EpochKind) -> None:
        """From now on the run has epochs of this kind."""
        if kind != self.epoch_kind:
            self.epoch_kind, self.epoch_ends = kind, deque(maxlen=MOST_ENDS)

    def end_epoch(self, epoch: int, now: float) -> None:
        """An epoch is complete."""
        self.complete_epochs = epoch + 1
        self.epoch_ends.append(now)
