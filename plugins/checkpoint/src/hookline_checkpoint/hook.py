"""`CheckpointHook`: the plugin as a hook that is made by hand and added to a trainer.

    trainer.add_hook(CheckpointHook(CheckpointManager("runs/mine"), checkpoint_interval=10, wandb_checkpoint_interval=50))
"""

from __future__ import annotations

from typing import Any

from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.manager import CheckpointManager
from hookline_checkpoint.plugin import Checkpoint
from hookline_hookspecs import CheckpointRecord, Emit, TrainerState, hookimpl

__all__ = ["CheckpointHook"]


class CheckpointHook(Checkpoint):
    """Saves every `checkpoint_interval` epochs and at the end; every `wandb_checkpoint_interval` epochs a checkpoint
    becomes an artifact of the wandb run, where there is one."""
