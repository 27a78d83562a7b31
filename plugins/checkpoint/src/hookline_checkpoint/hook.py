"""`CheckpointHook`: the plugin as a hook that is made by hand and added to a trainer.

manager = CheckpointManager("runs/mine", keep_last=2)
trainer.add_hook(CheckpointHook(manager, checkpoint_interval=10, wandb_checkpoint_interval=50))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hookline_checkpoint.manager import CheckpointManager
from hookline_checkpoint.moments import CheckpointMoments
from hookline_hookspecs import Emit, TrainerState

__all__ = ["CheckpointHook"]


class CheckpointHook(CheckpointMoments):
    """Saves every `checkpoint_interval` epochs and at the end of the run. A checkpoint becomes an artifact of the wandb
    run, where there is one, every `wandb_checkpoint_interval` epochs; 0 for never."""

    def __init__(
        self, checkpoint_manager: CheckpointManager, checkpoint_interval: int, wandb_checkpoint_interval: int
    ) -> None:
        super().__init__(checkpoint_manager, None)
        checkpoint_manager.options = replace(
            checkpoint_manager.options, every=checkpoint_interval, wandb_every=wandb_checkpoint_interval
        )
        self.checkpoint_interval = checkpoint_interval
        self.wandb_checkpoint_interval = wandb_checkpoint_interval
        self.latest_wandb_uri: str | None = None

    def use_emit(self, emit: Emit) -> None:
        """Announce events there. A trainer tells every hook that has this method when it is added."""
        self._events = emit

    def on_training_start(self, trainer_state: TrainerState) -> Any | None:
        """Load the newest valid checkpoint, if the run is to be resumed; returns the loaded policy, or None.

        A run that the hook was added to does so by itself.
        """
        return None if self.restore_training_run(trainer_state) is None else trainer_state.policy

    def uploaded(self, state: TrainerState, uri: str) -> None:
        super().uploaded(state, uri)
        self.latest_wandb_uri = uri
