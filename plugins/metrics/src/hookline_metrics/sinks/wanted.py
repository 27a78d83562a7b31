"""The sinks that the options ask for, each to be imported and opened on a thread of its own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import partial

from hookline_metrics.options import Options
from hookline_metrics.sinks.sink import DATABASE, Run, Sink, SinkUnavailableError

__all__ = ["wanted_sinks"]


def wanted_sinks(options: Options, run: Run) -> list[tuple[str, Callable[[], Sink]]]:
    """Names for messages, and what opens each sink."""
    built_in = {
        DATABASE: (True, "sqlite:SQLiteSink"),
        "metrics.csv": (options.csv, "text_files:CSVSink"),
        "metrics.jsonl": (options.jsonl, "text_files:JSONLinesSink"),
    }
    sinks: list[tuple[str, Callable[[], Sink]]] = [
        (name, partial(_open, f"hookline_metrics.sinks.{place}", run))
        for name, (is_wanted, place) in built_in.items()
        if is_wanted
    ]
    if options.wandb != "off":
        sinks.append(("wandb", partial(_open_wandb, options, run)))
    return sinks + [(name, partial(_open, name, run)) for name in options.sinks]


def _open(name: str, run: Run) -> Sink:
    try:
        make = pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise SinkUnavailableError(f"it cannot be imported: {error}. The option `sinks` names it") from error
    sink: Sink = make(run)
    return sink


def _open_wandb(options: Options, run: Run) -> Sink:
    from hookline_metrics.sinks.wandb_run import open_wandb

    return open_wandb(run, options)
