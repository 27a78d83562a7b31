"""Scales, ticks and number formats of charts, and thinning and smoothing of long curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Scale", "decimate", "format_number", "smooth", "ticks"]

Point = tuple[float, float]


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
    first, last = points[0][0], points[-1][0]
    width = (last - first) / columns or 1.0
    kept: list[Point] = []
    column: list[Point] = []
    number = 0
    for point in points:
        place = min(int((point[0] - first) / width), columns - 1)
        if place != number and column:
            kept += _extremes(column)
            column = []
        number = place
        column.append(point)
    return kept + _extremes(column)


def _extremes(column: Sequence[Point]) -> list[Point]:
    finite = [point for point in column if math.isfinite(point[1])]
    if not finite:
        return [column[0]]
    low, high = min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])
    return [low] if low == high else sorted((low, high))


def smooth(points: Sequence[Point]) -> list[Point]:
    """An exponential moving average over a fortieth of the points, 50 at most. Skips values that are not finite."""
    weight = 1 - 1 / min(50.0, max(2.0, len(points) / 40))
    smoothed: list[Point] = []
    average = correction = 0.0  # the correction removes the bias of the first values towards zero, as in Adam
    for x, y in points:
        if math.isfinite(y):
            average = weight * average + (1 - weight) * y
            correction = weight * correction + (1 - weight)
            smoothed.append((x, average / correction))
    return smoothed
