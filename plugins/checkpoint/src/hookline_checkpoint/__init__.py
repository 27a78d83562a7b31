"""Checkpoints of a run: written so that a kill at any moment leaves a valid one, and read back to resume.

How a checkpoint lies on disk is stated in `hookline_checkpoint.store`.
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
