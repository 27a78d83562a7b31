"""The trainer as a plugin among plugins: what it must remember goes into every checkpoint, and comes back from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hookline_hookspecs import hookimpl

__all__ = ["ResumePoint"]


class Resumable(Protocol):
    """What a resume point asks of a trainer."""

    def progress(self) -> dict[str, Any]: ...

    def load_progress(self, progress: Mapping[str, Any]) -> None: ...


class ResumePoint:
    """A checkpoint holds the state of every plugin; this one answers for the trainer."""

    critical = True  # a run that goes on from half of a state is not the same run

    def __init__(self, trainer: Resumable) -> None:
        self._trainer = trainer

    @hookimpl
    def save_plugin_state(self) -> Mapping[str, Any]:
        return self._trainer.progress()

    @hookimpl
    def load_plugin_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        if NAME in saved:
            self._trainer.load_progress(saved[NAME])


NAME = "trainer"
"""What the trainer goes by among plugins."""
