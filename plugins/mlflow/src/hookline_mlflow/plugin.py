"""The plugin and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hookline_hookspecs import hookimpl
from hookline_hookspecs.sinks import Run, Sink

__all__ = ["MLflow", "Options"]


@dataclass(frozen=True)
class Options:
    """Options of the plugin."""

    tracking_uri: str | None = None
    """A server or database. By default what `MLFLOW_TRACKING_URI` says, else `mlflow.db` in the current folder."""
    experiment: str = "hookline"
    """The MLflow experiment."""
    checkpoints: Literal["last", "all", "none"] = "last"
    """Which checkpoints become artifacts. `last` is stored when the run ends."""


class MLflow:
    """Has every run written to MLflow."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @hookimpl
    def register_sinks(self, run: Run) -> Mapping[str, Callable[[], Sink]]:
        def open_sink() -> Sink:
            from hookline_mlflow.sink import MLflowSink

            return MLflowSink(run, self._options)

        return {"mlflow": open_sink}
