"""The sinks of a run: the plugin's own, and those that other plugins register. Each is opened on its own thread."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hookline_hookspecs import Emit
from hookline_hookspecs.sinks import Run, Sink
from hookline_metrics.options import Options
from hookline_metrics.sinks import DATABASE

__all__ = ["all_sinks"]

logger = logging.getLogger("hookline.metrics")


def all_sinks(options: Options, run: Run, emit: Emit | None) -> dict[str, Callable[[], Sink]]:
    """Functions that open a sink, by the sink's name for messages."""
    built_in = {
        DATABASE: (True, "sqlite:SQLiteSink"),
        "metrics.csv": (options.csv, "text_files:CSVSink"),
        "metrics.jsonl": (options.jsonl, "text_files:JSONLinesSink"),
    }
    sinks: dict[str, Callable[[], Sink]] = {
        name: partial(_open, path, run) for name, (is_enabled, path) in built_in.items() if is_enabled
    }
    if emit is not None:
        for plugin, registered in emit.register_sinks(run=run).items():
            _add_registered(sinks, plugin, registered)
    return sinks


def _open(path: str, run: Run) -> Sink:
    sink: Sink = pkgutil.resolve_name(f"{__package__}.{path}")(run)
    return sink


def _add_registered(sinks: dict[str, Callable[[], Sink]], plugin: str, registered: Any) -> None:
    if not isinstance(registered, Mapping) or not all(
        isinstance(name, str) and callable(open_sink) for name, open_sink in registered.items()
    ):
        logger.warning(
            "the sinks of plugin %r are not used: register_sinks must return a dictionary with a function that opens "
            "a sink for each name, not a %s",
            plugin,
            type(registered).__name__,
        )
        return
    for name, open_sink in registered.items():
        if name in sinks:
            logger.warning("sink %r of plugin %r is not used: there is another one of that name", name, plugin)
        else:
            sinks[name] = open_sink
