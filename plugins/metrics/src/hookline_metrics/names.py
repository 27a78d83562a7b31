"""Which names a metric can have. A name that no sink can hold is left out where it comes in, and its source is named.

A name is text that UTF-8 can hold, without NUL characters, of at most 250 characters. Any other would be found by the
database, in the middle of a transaction with the reports of others.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["NameCheck", "calling_code"]

logger = logging.getLogger("hookline.metrics")

LONGEST_NAME: Final = 250
MOST_KNOWN: Final = 10_000
"""Names that are remembered as good; a program that invents a new one at every step must not fill the memory."""

OWN_MODULES: Final = ("hookline.plugin_manager.", "hookline.session.", "hookline_metrics.", "pluggy.")


class NameCheck:
    """Leaves out what has no proper name. Each source is told of once."""

    def __init__(self) -> None:
        self._good: set[Any] = set()
        self._told: set[str] = set()

    def named(self, numbers: Mapping[Any, Any], source: str | Callable[[], str]) -> Mapping[str, Any]:
        """The numbers that have a proper name: nearly always all of them, and then the same object.

        :param source: who gave them, for the message.
        """
        if self._good.issuperset(numbers):
            return numbers
        problems = {name: problem for name in numbers if (problem := _problem(name)) is not None}
        if len(self._good) > MOST_KNOWN:
            self._good.clear()
        self._good.update(name for name in numbers if name not in problems)
        if not problems:
            return numbers
        self._tell(source if isinstance(source, str) else source(), problems)
        return {name: value for name, value in numbers.items() if name not in problems}

    def _tell(self, source: str, problems: Mapping[Any, str]) -> None:
        if source not in self._told:
            self._told.add(source)
            name, problem = next(iter(problems.items()))
            others = f", and so are {len(problems) - 1} others" if len(problems) > 1 else ""
            logger.warning("the metric %s of %s is left out%s: its name %s", _shown(name), source, others, problem)


def _problem(name: Any) -> str | None:
    if not isinstance(name, str):
        return f"is a {type(name).__name__} and no text"
    if not name:
        return "is empty"
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters, and {LONGEST_NAME} are the most"
    if "\0" in name:
        return "has a NUL character"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "has a surrogate, which is no character of its own"
    return None


def _shown(name: Any) -> str:
    try:
        shown = ascii(name)
    except Exception:
        return f"<{type(name).__name__}>"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def calling_code() -> str:
    """The code that emitted the event which is being handled: the nearest that is not the framework's own."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        is_own = frame.f_code.co_filename.startswith("<hookline") or f"{module}.".startswith(OWN_MODULES)
        if not is_own:
            return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back  # type: ignore[assignment]
    return "log_metrics"
