"""Charts as SVG. `page.css` has the colours, and `page.js` shows values under the mouse pointer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from hookline_metrics.report.scales import Scale, decimate, format_number, smooth, ticks

__all__ = ["COLOURS", "Curve", "LessonSteps", "lesson_chart", "line_chart", "share_bar"]

WIDTH, HEIGHT = 440, 214
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 12, 36
WIDE: Final = 1160
COLUMNS: Final = WIDTH - LEFT - RIGHT
COLOURS: Final = 8
"""How many colours `page.css` has. The ninth curve has the colour of the first."""
SMOOTHED_FROM: Final = 60
"""A noisy curve with at least so many points also gets its moving average."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart."""

    label: str
    points: Sequence[tuple[float, float]]
    is_noisy: bool = False
    """Also draw its moving average, if it is long."""
    spread: Sequence[float] = ()
    """The std at each point, drawn as a band around the line; empty for a curve without one."""


def line_chart(curves: Sequence[Curve], *, x_label: str = "step", y_range: tuple[float, float] | None = None) -> str:
    """Curves over a common axis, with gaps where a value is not finite. A single point is drawn as a dot.

    :param y_range: the smallest range of the vertical axis.
    """
    drawn = [(curve, list(curve.points) if curve.spread else decimate(curve.points, COLUMNS)) for curve in curves]
    finite = [p for curve, points in drawn for p in (*points, *_edges(curve)) if math.isfinite(p[1])]
    if not finite:
        return '<p class="empty">no finite value was recorded</p>'
    xs = [x for x, _ in finite]
    ys = [*(y for _, y in finite), *(y_range or ())]
    across = Scale.around(xs, LEFT, WIDTH - RIGHT)
    up = Scale.around(ys, HEIGHT - BOTTOM, TOP, margin=0.05)
    parts = [*_axes(across, up, x_label)]
    hover = []
    for index, (curve, points) in enumerate(drawn):
        colour = index % COLOURS
        averaged = smooth(curve.points) if curve.is_noisy and len(curve.points) >= SMOOTHED_FROM else None
        if curve.spread:
            places = "L".join(f"{across(x):.1f},{up(y):.1f}" for x, y in _edges(curve))
            parts.append(f'<path class="band c{colour}" d="M{places}Z"/>')
        parts.append(_path(points, across, up, f"c{colour}{' raw' if averaged else ''}"))
        if averaged:
            parts.append(_path(decimate(averaged, COLUMNS), across, up, f"c{colour}"))
        hover.append(
            {"label": curve.label, "colour": colour, "points": _hover_points(points, curve.spread, across, up)}
        )
    data = escape(json.dumps(hover, separators=(",", ":"), ensure_ascii=False), quote=True)
    body = "".join(parts)
    is_clear = len(curves) == 1 and not curves[0].spread
    legend = "" if is_clear else _legend(curves)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" data-curves="{data}" '
        f'data-x="{escape(x_label)}">{body}</svg>{legend}'
    )


def _axes(across: Scale, up: Scale, x_label: str) -> Iterator[str]:
    for y in ticks(up.low, up.high, 4):
        place = f"{up(y):.1f}"
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place}" y2="{place}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{place}" dy="0.32em" text-anchor="end">{format_number(y)}</text>'
    for x in ticks(across.low, across.high, 4):
        anchor = "end" if across(x) > WIDTH - RIGHT - 12 else "middle"
        yield (
            f'<text class="tick" x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="{anchor}">'
            f"{format_number(x)}</text>"
        )
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>'
    yield f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{escape(x_label)}</text>'


def _path(points: Sequence[tuple[float, float]], across: Scale, up: Scale, style: str) -> str:
    """A line for each run of finite points, and a dot for a single one."""
    commands: list[str] = []
    dots: list[str] = []
    for stretch in _stretches(points):
        places = [f"{across(x):.1f},{up(y):.1f}" for x, y in stretch]
        if len(places) == 1:
            x, _, y = places[0].partition(",")
            dots.append(f'<circle class="dot {style}" cx="{x}" cy="{y}" r="3"/>')
        else:
            commands.append(f"M{'L'.join(places)}")
    line = f'<path class="line {style}" d="{"".join(commands)}"/>' if commands else ""
    return line + "".join(dots)


def _stretches(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    stretch: list[tuple[float, float]] = []
    for point in points:
        if math.isfinite(point[1]):
            stretch.append(point)
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _edges(curve: Curve) -> list[tuple[float, float]]:
    """The outline of the band: its upper edge from left to right, then its lower edge back."""
    band = list(zip(curve.points, curve.spread, strict=True)) if curve.spread else []
    return [(x, y + std) for (x, y), std in band] + [(x, y - std) for (x, y), std in reversed(band)]


def _hover_points(
    points: Sequence[tuple[float, float]], spread: Sequence[float], across: Scale, up: Scale
) -> list[list[float | str]]:
    """Coordinates and labels for the mouse pointer, about 200: fewer points than are drawn."""
    every = max(1, len(points) // 200)
    stds = [f" ± {format_number(std)}" for std in spread] or [""] * len(points)
    return [
        [round(across(x), 1), round(up(y), 1), format_number(x), format_number(y) + std]
        for (x, y), std in list(zip(points, stds, strict=True))[::every]
        if math.isfinite(y)
    ]


def _legend(curves: Sequence[Curve]) -> str:
    items = "".join(
        f'<span><i class="c{index % COLOURS}"></i>{escape(curve.label)}</span>'
        for index, curve in enumerate(curves)
        if curve.points
    )
    return f'<p class="legend">{items}</p>'


def share_bar(shares: Mapping[str, float]) -> str:
    """A stacked bar of shares."""
    total = sum(shares.values())
    if total <= 0:
        return '<p class="empty">no time was recorded</p>'
    parts, labels = [], []
    start = 0.0
    for index, (name, value) in enumerate(shares.items()):
        width = 100 * value / total
        text = f"{name}: {format_number(value)} s, {width:.1f} %"
        parts.append(
            f'<rect class="fill c{index % COLOURS}" x="{start:.3f}" width="{width:.3f}" height="10">'
            f"<title>{escape(text)}</title></rect>"
        )
        labels.append(
            f'<span><i class="c{index % COLOURS}"></i>{escape(name)} <b>{width:.1f} %</b> '
            f"<small>{format_number(value)} s</small></span>"
        )
        start += width
    bar = f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img">{"".join(parts)}</svg>'
    return f'{bar}<p class="legend">{"".join(labels)}</p>'


@dataclass(frozen=True)
class LessonSteps:
    """The steps at which a lesson was unlocked and graduated."""

    name: str
    unlocked: float
    graduated: float | None
    success: float | None


def lesson_chart(lessons: Sequence[LessonSteps], last_step: float) -> str:
    """A row for each lesson: a bar from where it was unlocked to where it graduated, or to the end."""
    row, left = 26, 150
    height = TOP + row * len(lessons) + BOTTOM
    across = Scale.around([0.0, max(last_step, 1.0)], left, WIDE - 70)
    parts = []
    for x in ticks(across.low, across.high, 8):
        place = f"{across(x):.1f}"
        parts.append(f'<line class="grid" x1="{place}" x2="{place}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{place}" y="{height - BOTTOM + 16}" text-anchor="middle">{format_number(x)}</text>'
        )
    for index, lesson in enumerate(lessons):
        top = TOP + row * index + 5
        start, end = across(lesson.unlocked), across(last_step if lesson.graduated is None else lesson.graduated)
        state = "learning" if lesson.graduated is None else "graduated"
        title = f"{lesson.name}: unlocked at step {format_number(lesson.unlocked)}" + (
            "" if lesson.graduated is None else f", graduated at step {format_number(lesson.graduated)}"
        )
        success = "" if lesson.success is None else f"{lesson.success:.0%}"
        parts.append(
            f'<text class="name" x="{left - 10}" y="{top + 8}" dy="0.32em" text-anchor="end">'
            f"{escape(lesson.name)}</text>"
            f'<rect class="lesson {state}" x="{start:.1f}" y="{top}" width="{max(end - start, 3):.1f}" height="16" '
            f'rx="4"><title>{escape(title)}</title></rect>'
            f'<text class="tick" x="{end + 6:.1f}" y="{top + 8}" dy="0.32em">'
            f"{success}{' ✓' if lesson.graduated is not None else ''}</text>"
        )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="lessons">'
        f'<svg class="lessons" viewBox="0 0 {WIDE} {height}" role="img">{"".join(parts)}</svg></div>'
    )
