"""What counts as a number, and whose it is when two sources give the same name.

Python's and NumPy's numbers count, booleans as 0 and 1, and so does an array or tensor with a single element. NaN and
the infinities are numbers: that a loss was NaN at step 70 is worth a row. Strings, None, larger arrays and all else are
not, and are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from hookline_metrics.names import NameCheck

__all__ = ["Merger", "as_scalar"]

logger = logging.getLogger("hookline.metrics")


def as_scalar(value: Any) -> float | None:
    """The value as a float, or None for what is not a number."""
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
    """Merges the numbers of several sources into one report. What it has warned of once, it does not warn of again."""

    def __init__(self) -> None:
        self._names = NameCheck()
        self._warned: set[str] = set()

    def merge(self, sources: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """All numbers by name. Of two sources that claim a name the first keeps it."""
        merged: dict[str, Any] = {}
        owners: dict[str, str] = {}
        for source, numbers in sources:
            if not isinstance(numbers, Mapping):
                self._warn(f"{source} gives a {type(numbers).__name__} in place of numbers by name: it is left out")
                continue
            for name, value in self._names.named(numbers, source).items():
                if name in owners:
                    self._warn(f"metric {name!r} is claimed by {owners[name]} and by {source}: the first keeps it")
                else:
                    owners[name], merged[name] = source, value
        return merged

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)
