"""Runs in short, as JSON-compatible data: state, epoch, step and the latest of the most important metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hookline_metrics.headline import headline
from hookline_metrics.run_reader import RunReader, UnreadableRunError
from hookline_metrics.sinks import DATABASE

__all__ = ["UNREADABLE_RUN", "describe_folder", "describe_run", "describe_runs", "unreadable_message"]

UNREADABLE_RUN: Final = (UnreadableRunError, OSError, TypeError, ValueError)
"""What reading a run raises if its database is damaged, gone, or has rows that are not metrics."""


def describe_run(run: RunReader, *, with_curves: bool = False) -> dict[str, Any]:
    """A run as JSON-compatible data."""
    described: dict[str, Any] = {
        "run": run.folder.resolve().name,
        "folder": str(run.folder),
        "task": run.task,
        "state": run.state,
        "message": run.status.get("message") if run.status and run.state == "failed" else None,
        "epoch": run.epoch,
        "step": run.step,
        "started": run.started,
        "updated": run.updated,
        "heartbeat_age_seconds": run.heartbeat_age,
        "numbers": {name: _finite(value) for name, value in headline(run).items()},
    }
    if with_curves:
        described["metrics"] = {}
        for name in run.names:
            series = run.series(name)
            described["metrics"][name] = {"steps": series.steps, "values": [_finite(v) for v in series.values]}
    return described


def describe_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Runs as JSON-compatible data, the latest update first. A run that cannot be read has an error as its message."""
    return sorted(map(describe_folder, folders), key=lambda run: run["updated"] or 0.0, reverse=True)


def describe_folder(folder: Path) -> dict[str, Any]:
    """One run of `describe_runs`."""
    try:
        with RunReader(folder) as run:
            return describe_run(run)
    except UNREADABLE_RUN as error:
        unknown = dict.fromkeys(("task", "epoch", "step", "started", "updated", "heartbeat_age_seconds"))
        own = {"run": folder.resolve().name, "folder": str(folder), "state": "unreadable"}
        return {**own, "message": unreadable_message(folder, error), **unknown, "numbers": {}}


def unreadable_message(folder: Path, error: Exception) -> str:
    """Why a run cannot be read. Rows that another program wrote may have values of any type."""
    if isinstance(error, (UnreadableRunError, OSError)):
        return str(error)
    return f"{folder / DATABASE} has rows that are not metrics: {error}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
