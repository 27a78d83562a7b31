"""Condenses reports that come faster than they are read, so that a run's database grows with time and not with steps.

A sink gets the first 20,000 numbers of a run in full, and then up to 100 numbers a second. While more than that come,
the reports of the same metrics in each second become one: the mean, least and greatest values and their count, at the
last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from hookline_hookspecs.sinks import Report, Window
from hookline_metrics.sinks import SAVED

__all__ = ["FLOAT", "WINDOW_SECONDS", "Condenser"]

FLOAT: Final = frozenset({float})

WINDOW_SECONDS: Final = 1.0
NUMBERS_PER_SECOND: Final = 100.0
"""Numbers that are kept in full."""
AT_ONCE: Final = 20_000.0
"""As many may come at once, so that a short run has all its steps."""


class Condenser:
    """Condenses the reports of one sink, which come in batches, oldest first.

    :param converted: a report with all its values as floats, and without what is no number.
    """

    def __init__(self, converted: Callable[[Report], Report] = lambda report: report) -> None:
        self._converted = converted
        self._allowance = AT_ONCE
        """How many numbers may be kept in full, as of `_as_of`."""
        self._as_of = math.inf

    def condense(self, reports: Sequence[Report]) -> list[Report]:
        """The reports, or if they are too many, one for each set of metrics and window."""
        if not reports:
            return []
        if self._may_keep(sum([len(report.numbers) for report in reports]), reports[-1].time):
            return list(map(self._converted, reports))
        try:
            return _condensed(reports)
        except (RuntimeError, TypeError, ValueError):  # among the numbers is something else
            return _condensed(list(map(self._converted, reports)))

    def _may_keep(self, count: int, now: float) -> bool:
        """Whether so many numbers are kept in full. Those that are not use up the allowance too."""
        refill = NUMBERS_PER_SECOND * max(0.0, now - self._as_of)
        allowed = min(AT_ONCE, self._allowance + refill)
        self._allowance, self._as_of = max(0.0, allowed - count), now
        return count <= allowed


def _condensed(reports: Sequence[Report]) -> list[Report]:
    """One report for each set of metrics and window.

    A window does not reach across a checkpoint: a resumed run records everything after its checkpoint again.
    """
    # A batch is usually one window. There are more if the sink was busy for long.
    start, end = reports[0].time, reports[-1].time
    windows = max(1, round((end - start) / WINDOW_SECONDS))
    per_second = windows / (end - start) if end > start else 0.0
    groups: dict[tuple[int, int, tuple[str, ...]], list[int]] = {}
    checkpoints = 0
    for index, report in enumerate(reports):
        checkpoints += SAVED in report.numbers
        window = min(windows - 1, int((report.time - start) * per_second))
        groups.setdefault((checkpoints, window, tuple(report.numbers)), []).append(index)
    kept = {indices[-1]: _as_one([reports[index] for index in indices]) for indices in groups.values()}
    return [kept[index] for index in sorted(kept)]


def _as_one(reports: Sequence[Report]) -> Report:
    """One report of reports with the same metrics. The mean of values that are not all numbers is NaN."""
    last = reports[-1]
    names = last.numbers.keys()
    columns = list(zip(*[report.numbers.values() for report in reports], strict=True))
    means = [sum(column) / len(column) for column in columns]
    # To check each value would take as long as all the rest. What is no number cannot be added, or the sum is no float.
    if not FLOAT.issuperset(map(type, means if len(reports) > 1 else last.numbers.values())):
        raise TypeError("not all are numbers")
    if len(reports) == 1:
        return last
    # A NaN compares as neither less nor greater, so where it stands would decide the extremes.
    comparable = [
        [value for value in column if not math.isnan(value)] or column if math.isnan(mean) else column
        for column, mean in zip(columns, means, strict=True)
    ]
    low, high = (dict(zip(names, map(float, map(extreme, comparable)), strict=True)) for extreme in (min, max))
    return last._replace(numbers=dict(zip(names, means, strict=True)), window=Window(len(reports), low, high))
