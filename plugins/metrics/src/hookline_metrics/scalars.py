"""Converts metric values to floats, and merges the metrics of several sources.

Python and NumPy numbers, booleans (as 0 and 1), and arrays or tensors with one element are metrics. So are NaN and the
infinities: that a loss was NaN at step 70 is worth a row. Strings, None, larger arrays and all else are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from hookline_metrics.metric_names import NameCheck

__all__ = ["Merger", "as_scalar"]

logger = logging.getLogger("hookline.metrics")


def as_scalar(value: Any) -> float | None:
    """The value as a float, or None if it is not a single number."""
    if not isinstance(value, Real) and callable(getattr(value, "item", None)):
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):
            return None  # an array of more than one element
    try:
        return float(value) if isinstance(value, Real) else None
    except OverflowError:
        return None


class Merger:
    """Merges the metrics of several sources into one report. Logs each warning once."""

    def __init__(self) -> None:
        self._names = NameCheck()
        self._warned: set[str] = set()

    def merge(self, sources: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """All metrics by name. Where two sources have the same name, the first wins."""
        merged: dict[str, Any] = {}
        owners: dict[str, str] = {}
        for source, numbers in sources:
            if not isinstance(numbers, Mapping):
                self._warn(f"{source} returned a {type(numbers).__name__}, not a mapping of names to numbers: ignored")
                continue
            for name, value in self._names.valid(numbers, source).items():
                if name in owners:
                    self._warn(f"metric {name!r} comes from {owners[name]} and from {source}: the first is recorded")
                else:
                    owners[name], merged[name] = source, value
        return merged

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)
