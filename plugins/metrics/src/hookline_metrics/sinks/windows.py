"""Condenses reports that come faster than they are read, so that a run's database grows with time and not with steps.

Of the same metrics, 50 reports a second are kept in full, and the first thousand however fast they come. Of those that
come faster, each half second becomes one report: the mean, least and greatest values and their count, at the last step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from hookline_hookspecs.sinks import Report, Window
from hookline_metrics.sinks import SAVED

__all__ = ["Condenser"]

WINDOW_SECONDS: Final = 0.5
REPORTS_PER_SECOND: Final = 50.0
"""Reports of the same metrics that are kept in full."""
AT_ONCE: Final = 1000.0
"""As many may come at once, so that a short run has all its steps."""

Names = tuple[str, ...]


class Condenser:
    """Condenses the reports of one sink, which come in batches, oldest first."""

    def __init__(self) -> None:
        self._allowance: dict[Names, tuple[float, float]] = {}
        """How many reports of these metrics may be kept in full, and as of which time."""

    def condense(self, reports: Sequence[Report]) -> list[Report]:
        """The reports, with those that come too fast condensed to one for each window.

        A window does not reach across a checkpoint: a resumed run records everything after its checkpoint again.
        """
        groups: dict[tuple[int, int, Names], list[int]] = {}
        checkpoints = 0
        for index, report in enumerate(reports):
            if SAVED in report.numbers:
                checkpoints += 1
            key = checkpoints, int(report.time / WINDOW_SECONDS), tuple(report.numbers)
            groups.setdefault(key, []).append(index)
        kept: dict[int, Report] = {}
        for (_, _, names), indices in groups.items():
            if self._may_keep(names, len(indices), reports[indices[-1]].time):
                kept.update((index, reports[index]) for index in indices)
            else:
                kept[indices[-1]] = _as_one([reports[index] for index in indices])
        return [kept[index] for index in sorted(kept)]

    def _may_keep(self, names: Names, count: int, now: float) -> bool:
        """Whether so many reports are kept in full. Those that are not use up the allowance too."""
        left, before = self._allowance.get(names, (AT_ONCE, now))
        left = min(AT_ONCE, left + REPORTS_PER_SECOND * max(0.0, now - before))
        self._allowance[names] = max(0.0, left - count), now
        return count == 1 or count <= left


def _as_one(reports: Sequence[Report]) -> Report:
    """One report of reports with the same metrics. The mean of values that are not all numbers is NaN."""
    names = reports[0].numbers.keys()
    columns = list(zip(*(report.numbers.values() for report in reports), strict=True))
    means = [sum(column) / len(column) for column in columns]
    # A NaN compares as neither less nor greater, so where it stands would decide the extremes.
    comparable = [
        [value for value in column if not math.isnan(value)] or column if math.isnan(mean) else column
        for column, mean in zip(columns, means, strict=True)
    ]
    low, high = (dict(zip(names, map(extreme, comparable), strict=True)) for extreme in (min, max))
    return reports[-1]._replace(numbers=dict(zip(names, means, strict=True)), window=Window(len(reports), low, high))
