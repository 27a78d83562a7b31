"""Draws what `scaling.py` found: a panel for each quantity, over the number of workers, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

__all__ = ["draw"]

PANELS: Final = {
    "trainer_idle": ("trainer idle", 1.0, "{:.0%}"),
    "driver_load": ("driver load", 1.0, "{:.0%}"),
    "staleness": ("mean staleness (limit 2)", 2.0, "{:.1f}"),
}
"""The title of each quantity, the top of its axis, and how it is written."""
COLOURS: Final = ("#0072b2", "#e69f00", "#cc3311")
WIDTH, HEIGHT, LEFT, TOP, GAP = 230, 170, 48, 34, 62


def draw(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """One line for each series in each panel. Each point has `workers` and the quantities."""
    counts = [point["workers"] for points in series.values() for point in points]
    ends = math.log10(min(counts)), math.log10(max(counts)) or 1.0

    def across(workers: float) -> float:
        return WIDTH * (math.log10(workers) - ends[0]) / max(ends[1] - ends[0], 1e-9)

    total = LEFT + len(PANELS) * (WIDTH + GAP)
    bottom = TOP + HEIGHT + 44 + 18 * len(series)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {bottom}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{total}" height="{bottom}" fill="white"/>',
    ]
    for number, name in enumerate(PANELS):
        parts.append(f'<g transform="translate({LEFT + number * (WIDTH + GAP)} {TOP})">')
        parts += [*_axes(name, sorted(set(counts)), across), *_lines(name, series, across), "</g>"]
    for number, title in enumerate(series):
        y = TOP + HEIGHT + 52 + 18 * number
        parts.append(f'<rect x="{LEFT}" y="{y - 8}" width="14" height="4" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{LEFT + 20}" y="{y}">{title}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axes(name: str, counts: Sequence[int], across: Callable[[float], float]) -> list[str]:
    title, top, written = PANELS[name]
    parts = [f'<text x="0" y="-14" font-size="13" font-weight="bold">{title}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = HEIGHT * (1 - share)
        parts.append(f'<line x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{written.format(share * top)}</text>')
    parts += [
        f'<text x="{across(count):.1f}" y="{HEIGHT + 16}" text-anchor="middle">{count}</text>' for count in counts
    ]
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 32}" text-anchor="middle">workers</text>')
    return parts


def _lines(name: str, series: Mapping[str, Sequence[Mapping[str, Any]]], across: Callable[[float], float]) -> list[str]:
    top = PANELS[name][1]
    parts = []
    for colour, points in zip(COLOURS, series.values(), strict=False):
        places = [(across(own["workers"]), HEIGHT * (1 - min(own[name] / top, 1.0))) for own in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return parts
