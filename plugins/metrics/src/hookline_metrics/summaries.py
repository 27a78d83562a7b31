"""Runs in short: state, epoch, step, and the few metrics that summarise a run, found by their names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from hookline_metrics.run_reader import RunReader, UnreadableRunError
from hookline_metrics.sinks import DATABASE

__all__ = [
    "LOSSES",
    "REWARDS",
    "UNREADABLE_RUN",
    "VALIDATION_LOSSES",
    "describe_folder",
    "describe_run",
    "describe_runs",
    "headline",
    "lesson_scores",
    "unreadable_message",
]

LOSSES: Final = ("train/loss", "loss", "train_loss")
VALIDATION_LOSSES: Final = ("val_avg_loss", "val/loss", "val_loss")
REWARDS: Final = ("rollout/mean_reward", "rewards/mean_reward", "mean_reward", "reward")
"""Names under which runs record their loss and reward. The first that a run has is used."""

SCORE: Final = "success_rate"

UNREADABLE_RUN: Final = (UnreadableRunError, OSError, TypeError, ValueError)
"""What reading a run raises if its database is damaged, gone, or has rows that are not metrics."""


def lesson_scores(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The names of the lessons' success rates, by kind of evaluation and lesson, sorted.

    `eval/addition/success_rate` is the lesson `addition` of the kind `eval`.
    `eval/success_rate`, if there is one too, belongs to no lesson and is left out.
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        *kind, lesson, score = ["", *name.split("/")]
        if score == SCORE and lesson:
            found.setdefault("/".join(part for part in kind if part), {})[lesson] = name
    without_kind = found.pop("", {})
    alone = {lesson: name for lesson, name in without_kind.items() if lesson not in found}
    return {kind: dict(sorted(lessons.items())) for kind, lessons in {**found, "": alone}.items() if lessons}


def headline(run: RunReader) -> dict[str, float]:
    """The latest loss, validation loss, reward, mean success over lessons and steps per second, where recorded."""
    numbers = {}
    for label, names in {"loss": LOSSES, "validation loss": VALIDATION_LOSSES, "reward": REWARDS}.items():
        value = next((run.last(name) for name in names if name in run.names), None)
        if value is not None:
            numbers[label] = value
    rates = _widest(lesson_scores(run.names))
    values = [value for value in map(run.last, rates.values()) if value is not None]
    if values:
        numbers["success"] = sum(values) / len(values)
    rate = run.last("rate/steps_per_second")
    if rate is not None:
        numbers["steps/s"] = rate
    return numbers


def _widest(kinds: dict[str, dict[str, str]]) -> dict[str, str]:
    """The kind of evaluation that covers most lessons."""
    return max(kinds.values(), key=len) if kinds else {}


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
