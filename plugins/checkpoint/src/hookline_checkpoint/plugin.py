"""The plugin: saves checkpoints as its options say."""

from __future__ import annotations

from hookline_checkpoint.events import CheckpointEvents
from hookline_checkpoint.manager import CheckpointManager
from hookline_checkpoint.options import Options
from hookline_hookspecs import Emit

__all__ = ["Checkpoint"]


class Checkpoint(CheckpointEvents):
    """Saves the run at intervals and at its end, and resumes it if asked to."""

    def __init__(self, options: Options, emit: Emit) -> None:
        super().__init__(CheckpointManager(**vars(options)), emit)
