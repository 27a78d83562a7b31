"""The errors of checkpoints."""

from __future__ import annotations

from pathlib import Path

from hookline_hookspecs import HooklineError

__all__ = ["CheckpointError", "InvalidCheckpointError", "NewerFormatError"]


class CheckpointError(HooklineError, RuntimeError):
    """A checkpoint cannot be saved, or a run cannot resume from one."""


class InvalidCheckpointError(CheckpointError):
    """A checkpoint is damaged. The message names the file and the damage."""

    path: Path | None = None
    """The folder of the checkpoint, if known."""


class NewerFormatError(CheckpointError):
    """A checkpoint has a newer format version than this release can read. It is not changed."""
