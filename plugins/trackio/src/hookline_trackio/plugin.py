"""The plugin and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hookline_hookspecs import hookimpl
from hookline_hookspecs.sinks import Run, Sink

__all__ = ["Options", "Trackio"]


@dataclass(frozen=True)
class Options:
    """Options of the plugin."""

    project: str = "hookline"
    """The trackio project."""
    space_id: str | None = None
    """A Hugging Face Space to send the run to. By default it stays on this machine."""
    server_url: str | None = None
    """A trackio server to send the run to."""
    checkpoints: Literal["last", "all", "none"] = "last"
    """Which checkpoints become artifacts. `last` is stored when the run ends."""


class Trackio:
    """Has every run written to trackio."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @hookimpl
    def register_sinks(self, run: Run) -> Mapping[str, Callable[[], Sink]]:
        def open_sink() -> Sink:
            from hookline_trackio.sink import TrackioSink

            return TrackioSink(run, self._options)

        return {"trackio": open_sink}
