"""Draws control episodes as SVG without scripts: plots of a trajectory, and an animation of CartPole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any, Final

__all__ = ["cartpole_animation", "trajectory_plot"]

WIDTH: Final = 680
HEIGHT: Final = 42
"""The height of one plot."""
LABEL: Final = 130
COLOURS: Final = ("#2b7bba", "#d9822b", "#3a9a5b", "#b8433f", "#7d5ba6", "#8a6d3b", "#c06fa4", "#777777")
MAX_OBSERVATIONS: Final = 8
MAX_ACTIONS: Final = 4
MAX_POINTS: Final = 200
"""The most points of one plot."""

TRACK: Final = 2.4
"""How far the cart may go to either side in CartPole."""
SECONDS_PER_STEP: Final = 0.02
STEPS_PER_FRAME: Final = 2
"""So 25 frames per second."""


def trajectory_plot(observations: Sequence[Any], actions: Sequence[Any], rewards: Sequence[float | None]) -> str:
    """A plot over the steps of an episode for each observation, each action and the cumulative reward."""
    series = [(f"observation {i}", column) for i, column in enumerate(_columns(observations)[:MAX_OBSERVATIONS])]
    series += [(f"action {i}", column) for i, column in enumerate(_columns(actions)[:MAX_ACTIONS])]
    so_far = list(accumulate(reward or 0.0 for reward in rewards))
    strips = [_strip(index, *named) for index, named in enumerate([*series, ("reward so far", so_far)])]
    height = len(strips) * HEIGHT
    return (
        f'<svg viewBox="0 0 {WIDTH + LABEL} {height}" width="{WIDTH + LABEL}" role="img" aria-label="trajectory">'
        f"{''.join(strips)}</svg>"
    )


def _strip(index: int, name: str, values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    span, last = (high - low) or 1.0, max(len(values) - 1, 1)
    # More points cannot be seen, and training waits while they are drawn.
    stride = 1 + len(values) // MAX_POINTS
    points = " ".join(
        f"{WIDTH * step / last:.1f},{HEIGHT - 4 - (HEIGHT - 8) * (value - low) / span:.1f}"
        for step, value in islice(enumerate(values), 0, None, stride)
        if value is not None
    )
    colour = COLOURS[index % len(COLOURS)]
    return (
        f'<g transform="translate(0 {index * HEIGHT})">'
        f'<line x1="0" y1="{HEIGHT}" x2="{WIDTH}" y2="{HEIGHT}" stroke="#8884"/>'
        f'<polyline fill="none" stroke="{colour}" points="{points}"/>'
        f'<text x="{WIDTH + 10}" y="18" font-size="12" fill="{colour}">{name}</text>'
        f'<text x="{WIDTH + 10}" y="33" font-size="11" fill="#888">{low:.3g} to {high:.3g}</text></g>'
    )


def cartpole_animation(observations: Sequence[Sequence[float]]) -> str:
    """An animation of the cart and its pole, in a loop."""
    scale, ground, pole = 100, 120, 80
    if not observations or len(observations[0]) != 4:
        return ""
    duration = f"{max(len(observations), 2) * SECONDS_PER_STEP:.2f}s"
    shown = observations[::STEPS_PER_FRAME]
    places = ";".join(f"{TRACK * scale + row[0] * scale:.1f} {ground}" for row in shown)
    angles = ";".join(f"{math.degrees(row[2]):.2f}" for row in shown)
    first_place, first_angle = places.split(";")[0], angles.split(";")[0]
    timing = f'dur="{duration}" repeatCount="indefinite" calcMode="discrete"'
    return (
        f'<svg viewBox="0 0 {2 * TRACK * scale:g} 150" width="480" role="img" aria-label="cart and pole">'
        f'<line x1="0" y1="{ground}" x2="{2 * TRACK * scale:g}" y2="{ground}" stroke="#888"/>'
        f'<g transform="translate({first_place})">'
        f'<animateTransform attributeName="transform" type="translate" values="{places}" {timing}/>'
        '<rect x="-22" y="-12" width="44" height="24" rx="3" fill="#2b7bba"/>'
        f'<g transform="rotate({first_angle})">'
        f'<animateTransform attributeName="transform" type="rotate" values="{angles}" {timing}/>'
        f'<line x1="0" y1="-6" x2="0" y2="-{pole}" stroke="#d9822b" stroke-width="6" stroke-linecap="round"/>'
        "</g></g></svg>"
    )


def _columns(rows: Sequence[Any]) -> list[list[Any]]:
    """Rows as columns. A row may be a single number."""
    return [list(column) for column in zip(*(row if isinstance(row, list) else [row] for row in rows), strict=False)]
