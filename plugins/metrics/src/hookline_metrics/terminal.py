"""What `hookline runs` prints: a table of runs, or one run with a small chart of each metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hookline_metrics.durations import format_age, format_duration
from hookline_metrics.report.scales import format_number
from hookline_metrics.run_reader import RunReader
from hookline_metrics.summaries import describe_run

__all__ = ["print_run", "print_runs", "sparkline"]

BLOCKS: Final = "▁▂▃▄▅▆▇█"
GAP: Final = "·"
STYLES: Final = {"running": "blue", "finished": "green", "failed": "red", "stopped": "dim", "unreadable": "red"}


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as a chart of one line. Neighbours are averaged to fit the width; a gap has no finite value."""
    if not values:
        return ""
    columns = min(width, len(values))
    means = []
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        finite = [value for value in part if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    known = [mean for mean in means if math.isfinite(mean)]
    if not known:
        return GAP * columns
    low, span = min(known), max(known) - min(known)
    return "".join(
        BLOCKS[min(len(BLOCKS) - 1, int((mean - low) / span * len(BLOCKS))) if span > 0 else 3]
        if math.isfinite(mean)
        else GAP
        for mean in means
    )


def print_runs(runs: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Print a table of runs."""
    console = Console()
    if not runs:
        console.print(f"No runs in {escape(str(folder))}/. Start one: `hookline train cartpole --run-dir runs/first`")
        return
    columns = list(dict.fromkeys(name for run in runs for name in run["numbers"]))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "state", "age", "epoch", "step"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("epoch", "step", "age") else "left")
    for column in columns:
        table.add_column(column, justify="right")
    for run in runs:
        numbers = [_shown(name, run["numbers"].get(name)) for name in columns]
        epoch = "" if run["epoch"] is None else str(run["epoch"] + 1)
        step = "" if run["step"] is None else f"{run['step']:,}"
        table.add_row(f"[bold]{escape(run['run'])}[/]", _state(run["state"]), _age(run), epoch, step, *numbers)
    console.print(table)
    for run in runs:
        if run["state"] == "unreadable":
            console.print(f"{escape(run['run'])}: {escape(run['message'])}", soft_wrap=True, highlight=False)


def print_run(run: RunReader) -> None:
    """Print one run with all its metrics."""
    console = Console()
    described = describe_run(run)
    took = "" if run.started is None or run.updated is None else f", took {format_duration(run.updated - run.started)}"
    epoch = "" if run.epoch is None else f"epoch {run.epoch + 1}, "
    console.print(
        f"[bold]{escape(described['run'])}[/] {_state(run.state)}  {epoch}step {run.step:,}{took}  "
        f"[dim]{escape(str(run.folder))}[/]",
        soft_wrap=True,
        highlight=False,
    )
    if described["message"]:
        console.print(f"[red]{escape(described['message'])}[/]", soft_wrap=True, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    width = min(40, max(8, console.width - 66))  # what the names and numbers leave
    for heading in ("metric", "chart", "last", "min", "max"):
        left = heading in ("metric", "chart")
        table.add_column(heading, overflow="fold", no_wrap=heading != "metric", justify="left" if left else "right")
    for name in run.names:
        if not name.startswith("run/"):
            values = run.series(name).values
            finite = [value for value in values if math.isfinite(value)]
            extremes = [format_number(min(finite)), format_number(max(finite))] if finite else ["", ""]
            last = format_number(values[-1]) if values else ""
            table.add_row(escape(name), f"[cyan]{sparkline(values, width)}[/]", last, *extremes)
    console.print(table if table.rows else "No metrics have been recorded yet.")


def _state(state: str) -> str:
    return f"[{STYLES[state]}]{state}[/]"


def _age(run: Mapping[str, Any]) -> str:
    age = run["heartbeat_age_seconds"]
    return "" if age is None else format_age(age)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0%}" if name == "success" else format_number(value)
