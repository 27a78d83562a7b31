"""The plugin and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hookline_hookspecs import hookimpl
from hookline_hookspecs.sinks import Run, Sink

__all__ = ["Options", "TensorBoard"]


@dataclass(frozen=True)
class Options:
    """Options of the plugin."""

    logdir: Path | None = None
    """Write to a folder of the run's name in this one. By default to `tensorboard` in the run's folder."""


class TensorBoard:
    """Has every run written as TensorBoard events."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @hookimpl
    def register_sinks(self, run: Run) -> Mapping[str, Callable[[], Sink]]:
        def open_sink() -> Sink:
            from hookline_tensorboard.sink import TensorBoardSink

            return TensorBoardSink(run, self._options)

        return {"tensorboard": open_sink}
