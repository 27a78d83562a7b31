"""What can be wrong with a checkpoint."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CheckpointError", "InvalidCheckpointError"]


class CheckpointError(RuntimeError):
    """A checkpoint cannot be saved, or a run cannot go on from one."""


class InvalidCheckpointError(CheckpointError):
    """A checkpoint's files are not what was written. The message says which file, and what is wrong with it."""

    path: Path | None = None
    """The checkpoint, once it is known which it is."""
