"""Draws the trajectory of a control episode as SVG, without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["trajectory_plot"]

WIDTH: Final = 680
HEIGHT: Final = 42
"""The height of one plot."""
LABEL: Final = 130
COLOURS: Final = ("#2b7bba", "#d9822b", "#3a9a5b", "#b8433f", "#7d5ba6", "#8a6d3b", "#c06fa4", "#777777")
MAX_OBSERVATIONS: Final = 8
MAX_ACTIONS: Final = 4
MAX_POINTS: Final = 125
"""The most points of one plot."""


def trajectory_plot(observations: Sequence[Any], actions: Sequence[Any], rewards: Sequence[float | None]) -> str:
    """A plot over the steps of an episode for each observation, each action and the cumulative reward."""
    import numpy  # imported here so that listing plugins does not import NumPy

    series = [(f"observation {i}", column) for i, column in enumerate(_columns(observations)[:MAX_OBSERVATIONS])]
    series += [(f"action {i}", column) for i, column in enumerate(_columns(actions)[:MAX_ACTIONS])]
    series += [("reward so far", numpy.nancumsum(column)) for column in _columns(rewards)[:1]]
    strips = [_strip(index, *named) for index, named in enumerate(series)]
    height = len(strips) * HEIGHT
    return (
        f'<svg viewBox="0 0 {WIDTH + LABEL} {height}" width="{WIDTH + LABEL}" role="img" aria-label="trajectory">'
        f"{''.join(strips)}</svg>"
    )


def _columns(rows: Sequence[Any]) -> Any:
    """Rows as columns of an array, NaN where there is no number. A row may be a single number.

    Empty if they are not numbers, or not of one length.
    """
    import numpy

    try:
        return numpy.array(rows, float).reshape(len(rows), -1).T if rows else ()
    except (TypeError, ValueError):
        return ()


def _strip(index: int, name: str, values: NDArray[Any]) -> str:
    import numpy

    is_number = numpy.isfinite(values)
    low, high = (float(values[is_number].min()), float(values[is_number].max())) if is_number.any() else (0.0, 0.0)
    # More points cannot be seen. Training waits while they are drawn, so they are whole tenths: a list of integers
    # becomes text four times as fast as one of floats.
    shown = numpy.flatnonzero(is_number[:: 1 + len(values) // MAX_POINTS]) * (1 + len(values) // MAX_POINTS)
    x = WIDTH * shown / max(len(values) - 1, 1)
    y = HEIGHT - 4 - (HEIGHT - 8) * (values[shown] - low) / ((high - low) or 1.0)
    points = str(numpy.rint(10 * numpy.stack([x, y], axis=1)).astype(int).ravel().tolist())[1:-1]
    colour = COLOURS[index % len(COLOURS)]
    return (
        f'<g transform="translate(0 {index * HEIGHT})">'
        f'<line x1="0" y1="{HEIGHT}" x2="{WIDTH}" y2="{HEIGHT}" stroke="#8884"/>'
        f'<polyline transform="scale(.1)" fill="none" stroke="{colour}" stroke-width="10" points="{points}"/>'
        f'<text x="{WIDTH + 10}" y="18" font-size="12" fill="{colour}">{name}</text>'
        f'<text x="{WIDTH + 10}" y="33" font-size="11" fill="#888">{low:.3g} to {high:.3g}</text></g>'
    )
