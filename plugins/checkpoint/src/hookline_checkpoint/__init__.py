"""Saves checkpoints of a run and resumes from them. A kill at any time leaves a valid checkpoint.

The format on disk is described in `hookline_checkpoint.store`.
"""

from hookline_checkpoint.errors import CheckpointError, InvalidCheckpointError, NewerFormatError
from hookline_checkpoint.hook import CheckpointHook
from hookline_checkpoint.manager import CheckpointManager
from hookline_checkpoint.options import Options
from hookline_checkpoint.plugin import Checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointHook",
    "CheckpointManager",
    "InvalidCheckpointError",
    "NewerFormatError",
    "Options",
]
