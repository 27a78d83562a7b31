"""The plugin and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hookline_hookspecs import hookimpl
from hookline_hookspecs.sinks import Run, Sink

__all__ = ["Options", "Wandb"]


@dataclass(frozen=True)
class Options:
    """Options of the plugin."""

    mode: Literal["online", "offline"] = "online"
    """Send the run while it goes on, or keep it in `wandb/` in the run's folder for `wandb sync`."""
    project: str = "hookline"
    """The wandb project."""
    entity: str | None = None
    """The wandb entity. By default your own."""


class Wandb:
    """Has every run written to wandb."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @hookimpl
    def register_sinks(self, run: Run) -> Mapping[str, Callable[[], Sink]]:
        def open_sink() -> Sink:
            from hookline_wandb.sink import open_wandb

            return open_wandb(run, self._options)

        return {"wandb": open_sink}
