"""Scales, ticks and number formats of charts, and thinning and smoothing of long curves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Final

__all__ = ["Scale", "column_means", "decimate", "format_number", "smooth", "ticks"]

Point = tuple[float, float]

MAX_SMOOTHED: Final = 2000


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` linearly to coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, *, margin: float = 0.0) -> Scale:
        """A scale that covers all values. It has a positive range even if all values are equal."""
        low, high = min(values), max(values)
        if low == high:
            room = abs(low) * 0.1 or 1.0
            low, high = low - room, high + room
        room = (high - low) * margin
        return cls(low - room, high + room, start, end)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    rough = (high - low) / max(count, 1)
    if not math.isfinite(rough) or rough <= 0:
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    found: list[float] = []
    while (first + len(found)) * step <= high + step * 1e-9:
        found.append((first + len(found)) * step)
    return found


def format_number(value: float) -> str:
    """A short form: four significant digits, thousands separators, an exponent for very large and small numbers."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "-∞"}.get(value, "NaN")
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def decimate(points: Sequence[Point], columns: int) -> list[Point]:
    """The same curve with at most two points in each column: the minimum and the maximum.

    A column without finite points keeps one of its points, as a gap.
    """
    if len(points) <= 2 * columns:
        return list(points)
    kept: list[Point] = []
    for xs, ys in _columns(points, columns):
        finite = ys if math.isfinite(sum(ys)) else [y for y in ys if math.isfinite(y)]
        if not finite:
            kept.append((xs[0], ys[0]))
            continue
        low, high = min(finite), max(finite)
        kept += sorted({(xs[ys.index(low)], low), (xs[ys.index(high)], high)})
    return kept


def column_means(points: Sequence[Point], columns: int) -> list[Point]:
    """The mean of the points in each column, for a curve with more points than that. All must be finite."""
    if len(points) <= columns:
        return list(points)
    return [(fmean(xs), fmean(ys)) for xs, ys in _columns(points, columns)]


def _columns(points: Sequence[Point], columns: int) -> Iterator[tuple[Sequence[float], Sequence[float]]]:
    """The points in columns of equal width, left to right, without empty ones. By slices, as curves may be long."""
    ordered = sorted(points, key=itemgetter(0))
    xs, ys = list(map(itemgetter(0), ordered)), list(map(itemgetter(1), ordered))
    width = (xs[-1] - xs[0]) / columns or 1.0
    start = 0
    for column in range(1, columns + 1):
        end = len(xs) if column == columns else bisect_left(xs, xs[0] + column * width, start)
        if end > start:
            yield xs[start:end], ys[start:end]
        start = end


def smooth(points: Sequence[Point]) -> list[Point]:
    """An exponential moving average over a fortieth of the points, 50 at most. Skips values that are not finite.

    A very long curve is averaged in columns first.
    """
    finite = column_means([point for point in points if math.isfinite(point[1])], MAX_SMOOTHED)
    weight = 1 - 1 / min(50.0, max(2.0, len(finite) / 40))
    smoothed: list[Point] = []
    average = correction = 0.0  # the correction removes the bias of the first values towards zero, as in Adam
    for x, y in finite:
        average = weight * average + (1 - weight) * y
        correction = weight * correction + (1 - weight)
        smoothed.append((x, average / correction))
    return smoothed
