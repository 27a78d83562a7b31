"""The options of the checkpoint plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hookline_checkpoint.retention import Keep

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """When to save, which checkpoints to keep, and when to upload them."""

    every: int | None = None
    """Epochs between two checkpoints. None for about fifty in a long run, every 10 epochs of up to 500, every 20 of up
    to 1000, and so on, but at most one in 5 seconds, besides epochs that were evaluated if `keep_best` is given; or for
    none by epochs where `every_steps` is given."""
    every_steps: int | None = None
    """Gradient steps between two checkpoints; None for none by steps. An epoch cannot be resumed from its middle, so
    the checkpoint is saved when the epoch ends."""
    keep_last: int = 3
    """How many of the newest checkpoints to keep."""
    keep_best: int = 0
    """How many of the best to keep as well, by `best_metric`."""
    best_metric: str | None = None
    """The name of the score in `state.eval_scores` that ranks the best."""
    best_mode: Literal["max", "min"] = "max"
    """Whether the highest or the lowest score is the best."""
    when_busy: Literal["wait", "skip"] = "wait"
    """If the previous checkpoint is still being written: let training wait for it, or skip this save."""
    wandb_every: int = 50
    """Epochs between uploads of a checkpoint to the wandb run, if there is one; 0 for none."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("every_steps", self.every_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, got {self.keep_last}")
        if self.keep_best < 0:
            raise ValueError(f"keep_best must be at least 0, got {self.keep_best}")
        if self.keep_best and self.best_metric is None:
            raise ValueError("keep_best needs best_metric, the name of a score in state.eval_scores")
        if self.wandb_every < 0:
            raise ValueError(f"wandb_every must be at least 0, got {self.wandb_every}")

    @property
    def has_own_interval(self) -> bool:
        """Whether the user has chosen when to save."""
        return self.every is not None or self.every_steps is not None

    def interval(self, total_epochs: int | None) -> int | None:
        """Epochs between two checkpoints of a run of this length; None for none by epochs."""
        if self.has_own_interval:
            return self.every
        # A fifth of the evaluation plugin's, once more than 10: an epoch that is evaluated is one that is saved.
        return max(10, 2 * -(-(total_epochs or 0) // 100))

    def keep(self) -> Keep:
        return Keep(self.keep_last, self.keep_best, self.best_metric, self.best_mode)
