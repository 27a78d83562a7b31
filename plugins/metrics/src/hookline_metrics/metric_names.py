"""Checks the names of metrics.

A name is a string of at most 250 characters, without NUL characters, that can be encoded as UTF-8. A metric with any
other name is left out when it is recorded, and a warning names its source. Left in, it would fail in the database, and
with it the transaction of all other metrics.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["NameCheck", "calling_code"]

logger = logging.getLogger("hookline.metrics")

MAX_NAME_LENGTH: Final = 250
MAX_CACHED_NAMES: Final = 10_000
"""How many valid names are cached. Bounded, since a program may use a new name at every step."""

OWN_MODULES: Final = ("hookline.plugin_manager.", "hookline.session.", "hookline_metrics.", "pluggy.")


class NameCheck:
    """Leaves out metrics with an invalid name. Warns once for each source."""

    def __init__(self) -> None:
        self._valid: set[Any] = set()
        self._reported: set[str] = set()

    def valid(self, numbers: Mapping[Any, Any], source: str | Callable[[], str]) -> Mapping[str, Any]:
        """The metrics with a valid name. The same object if all names are valid, as they nearly always are.

        :param source: where they come from, for the warning.
        """
        if self._valid.issuperset(numbers):
            return numbers
        problems = {name: problem for name in numbers if (problem := _problem(name)) is not None}
        if len(self._valid) > MAX_CACHED_NAMES:
            self._valid.clear()
        self._valid.update(name for name in numbers if name not in problems)
        if not problems:
            return numbers
        self._warn(source if isinstance(source, str) else source(), problems)
        return {name: value for name, value in numbers.items() if name not in problems}

    def _warn(self, source: str, problems: Mapping[Any, str]) -> None:
        if source not in self._reported:
            self._reported.add(source)
            name, problem = next(iter(problems.items()))
            others = f", with {len(problems) - 1} others" if len(problems) > 1 else ""
            logger.warning("metric %s of %s is left out%s: its name %s", _shown(name), source, others, problem)


def _problem(name: Any) -> str | None:
    if not isinstance(name, str):
        return f"is a {type(name).__name__}, not a string"
    if not name:
        return "is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters, more than {MAX_NAME_LENGTH}"
    if "\0" in name:
        return "has a NUL character"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "has a lone surrogate, which UTF-8 cannot encode"
    return None


def _shown(name: Any) -> str:
    try:
        shown = ascii(name)
    except Exception:
        return f"<{type(name).__name__}>"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def calling_code() -> str:
    """File, line and function that emitted the current event: the innermost frame outside the framework."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        is_own = frame.f_code.co_filename.startswith("<hookline") or f"{module}.".startswith(OWN_MODULES)
        if not is_own:
            return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back  # type: ignore[assignment]
    return "log_metrics"
