"""The sinks that the options select. Each is imported and opened later, on its own thread."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import partial

from hookline_metrics.options import Options
from hookline_metrics.sinks.sink import DATABASE, Run, Sink, SinkUnavailableError

__all__ = ["configured_sinks"]


def configured_sinks(options: Options, run: Run) -> list[tuple[str, Callable[[], Sink]]]:
    """For each sink, its name for messages and a function that opens it."""
    built_in = {
        DATABASE: (True, "sqlite:SQLiteSink"),
        "metrics.csv": (options.csv, "text_files:CSVSink"),
        "metrics.jsonl": (options.jsonl, "text_files:JSONLinesSink"),
    }
    sinks: list[tuple[str, Callable[[], Sink]]] = [
        (name, partial(_open, f"hookline_metrics.sinks.{path}", run))
        for name, (is_enabled, path) in built_in.items()
        if is_enabled
    ]
    if options.wandb != "off":
        sinks.append(("wandb", partial(_open_wandb, options, run)))
    return sinks + [(name, partial(_open, name, run)) for name in options.sinks]


def _open(name: str, run: Run) -> Sink:
    try:
        make = pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise SinkUnavailableError(f"it cannot be imported: {error}. It is named in the option `sinks`") from error
    sink: Sink = make(run)
    return sink


def _open_wandb(options: Options, run: Run) -> Sink:
    from hookline_metrics.sinks.wandb_sink import open_wandb

    return open_wandb(run, options)
