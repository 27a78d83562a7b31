"""Several runs in one chart. Runs whose configs differ in the seed only are one curve: their mean, with the std."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hookline_metrics.report.charts import Curve
from hookline_metrics.report.scales import column_means
from hookline_metrics.run_reader import Series

__all__ = ["Group", "differences", "group_curve", "group_runs"]

NOT_COMPARED: Final = frozenset(
    {"seed", "data_seed", "run_dir", "output_dir", "logging_dir", "run_name", "resume", "metrics", "hash", "packages"}
)
"""Names of settings, at any depth, in which runs of one group may differ: seeds, files, code, options of metrics."""

COLUMNS: Final = 200
"""The most points of a curve."""

MAX_LABEL: Final = 40

Point = tuple[float, float]


@dataclass(frozen=True)
class Group:
    """Runs of one config, with different seeds."""

    runs: tuple[str, ...]
    settings: Mapping[str, str]
    """The config as JSON values by dotted name, without the settings in which the runs differ."""

    @property
    def label(self) -> str:
        names = ", ".join(self.runs)
        return names if len(names) <= MAX_LABEL else f"{self.runs[0]} and {len(self.runs) - 1} more"


def group_runs(configs: Mapping[str, Mapping[str, Any]]) -> list[Group]:
    """The runs, by name, in groups of one config. A run without a config is a group of its own."""
    groups: dict[object, list[str]] = {}
    settings = {name: dict(_settings(config)) for name, config in configs.items()}
    for name, own in settings.items():
        groups.setdefault(tuple(sorted(own.items())) or name, []).append(name)
    return [Group(tuple(names), settings[names[0]]) for names in groups.values()]


def _settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if key in NOT_COMPARED:
            continue
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False, default=str)


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """The settings in which groups differ, by dotted name, with a value for each group; empty where it has none."""
    names = dict.fromkeys(name for group in groups for name in group.settings)
    values = {name: [group.settings.get(name, "") for group in groups] for name in names}
    return {name: own for name, own in values.items() if len(set(own)) > 1}


def group_curve(label: str, found: Sequence[Series]) -> Curve:
    """One metric of the runs of a group.

    The mean and the sample std at each step are over the runs that have reached it and not ended before. A run that has
    no value at a step has one by linear interpolation.
    """
    runs = [run for run in map(_finite_points, found) if run]
    if len(runs) < 2:
        return Curve(label, runs[0] if runs else [], is_noisy=True)
    runs = [column_means(run, COLUMNS) for run in runs]
    points, spread = [], []
    for step in _common_steps(runs):
        values = [value for value in (_value_at(run, step) for run in runs) if value is not None]
        points.append((step, statistics.fmean(values)))
        spread.append(statistics.stdev(values) if len(values) > 1 else 0.0)
    return Curve(f"{label} (mean of {len(runs)})", points, spread=spread)


def _finite_points(series: Series) -> list[Point]:
    points = zip(map(float, series.steps), series.values, strict=True)
    return [(step, value) for step, value in points if math.isfinite(value)]


def _common_steps(runs: Sequence[Sequence[Point]]) -> list[float]:
    """The steps of all runs, or evenly spaced ones if those are too many."""
    steps = sorted({step for run in runs for step, _ in run})
    if len(steps) <= COLUMNS:
        return steps
    first, last = steps[0], steps[-1]
    return [first + (last - first) * column / (COLUMNS - 1) for column in range(COLUMNS)]


def _value_at(points: Sequence[Point], step: float) -> float | None:
    """The value at a step by linear interpolation. None before the first and after the last point."""
    after = bisect_left(points, step, key=lambda point: point[0])
    if after == len(points) or step < points[0][0]:
        return None
    x, y = points[after]
    if x == step:
        return y
    x0, y0 = points[after - 1]
    return y0 + (y - y0) * (step - x0) / (x - x0)
