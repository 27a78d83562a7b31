"""What can be wrong with a checkpoint."""

from __future__ import annotations

from pathlib import Path

from hookline_hookspecs import HooklineError

__all__ = ["CheckpointError", "InvalidCheckpointError", "NewerFormatError"]


class CheckpointError(HooklineError, RuntimeError):
    """A checkpoint cannot be saved, or a run cannot go on from one."""


class InvalidCheckpointError(CheckpointError):
    """A checkpoint's files are not what was written. The message says which file, and what is wrong with it."""

    path: Path | None = None
    """The checkpoint, once it is known which it is."""


class NewerFormatError(CheckpointError):
    """A checkpoint has a later version of the format than this release knows. It is left alone."""
