"""The plugin: checkpoints every few epochs, as the user's options say."""

from __future__ import annotations

from hookline_checkpoint.manager import CheckpointManager
from hookline_checkpoint.moments import CheckpointMoments
from hookline_checkpoint.options import Options
from hookline_hookspecs import Emit

__all__ = ["Checkpoint"]


class Checkpoint(CheckpointMoments):
    """Saves the run every so many epochs and at its end, and resumes it when asked."""

    def __init__(self, options: Options, emit: Emit) -> None:
        super().__init__(CheckpointManager(**vars(options)), emit)
