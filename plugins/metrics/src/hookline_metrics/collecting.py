"""Collects metrics: which values are numbers, which names are valid, and which source wins where two have a name.

Python and NumPy numbers, booleans (as 0 and 1), and arrays or tensors with one element are metrics. So are NaN and the
infinities: that a loss was NaN at step 70 is worth a row. Strings, None, larger arrays and all else are left out.

A name is a string of at most 250 characters, without NUL characters, that can be encoded as UTF-8. A metric with any
other name is left out when it is recorded, and a warning names its source. Left in, it would fail in the database, and
with it the transaction of all other metrics.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, Final

__all__ = ["Merger", "NameCheck", "NewScores", "as_scalar", "calling_code"]

logger = logging.getLogger("hookline.metrics")

MAX_NAME_LENGTH: Final = 250
MAX_CACHED_NAMES: Final = 10_000
"""How many valid names are cached. Bounded, since a program may use a new name at every step."""

OWN_MODULES: Final = ("hookline.plugin_manager.", "hookline.session.", "hookline_metrics.", "pluggy.")


class NameCheck:
    """Leaves out metrics with an invalid name. Warns once for each source."""

    def __init__(self) -> None:
        self.known: set[Any] = set()
        """Names that are valid."""
        self._reported: set[str] = set()

    def valid(self, numbers: Mapping[Any, Any], source: str | Callable[[], str]) -> Mapping[str, Any]:
        """The metrics with a valid name. The same object if all names are valid, as they nearly always are.

        :param source: where they come from, for the warning.
        """
        if self.known.issuperset(numbers):
            return numbers
        problems = {name: problem for name in numbers if (problem := _problem(name)) is not None}
        if len(self.known) > MAX_CACHED_NAMES:
            self.known.clear()
        self.known.update(name for name in numbers if name not in problems)
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
        before: list[tuple[str, Mapping[str, Any]]] = []
        for source, numbers in sources:
            if not isinstance(numbers, Mapping):
                self._warn(f"{source} returned a {type(numbers).__name__}, not a mapping of names to numbers: ignored")
                continue
            valid = self._names.valid(numbers, source)
            if not merged.keys().isdisjoint(valid):
                for name in [name for name in valid if name in merged]:
                    owner = next(other for other, theirs in before if name in theirs)
                    self._warn(f"metric {name!r} comes from {owner} and from {source}: the first is recorded")
                valid = {name: value for name, value in valid.items() if name not in merged}
            merged.update(valid)
            before.append((source, valid))
        return merged

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message)


class NewScores:
    """Finds the scores that are new. They stay in the state until the next evaluation, and are recorded once."""

    def __init__(self) -> None:
        self._announced: set[str] = set()
        self._recorded: dict[str, tuple[int, float]] = {}
        """The step and the value at which each score was last recorded."""
        self._seen: Mapping[str, float] = {}

    def mark_recorded(self, scores: Mapping[str, float], step: int) -> None:
        """Treat these scores as recorded. A checkpoint that a run resumes from has them in its database."""
        self._recorded = {name: (step, score) for name, score in scores.items()}
        self._seen = dict(scores)

    def announce(self, scores: Mapping[str, float]) -> None:
        """Record the scores of an evaluation that has ended, even where they equal the last ones."""
        self._announced.update(scores)

    def take(self, scores: Mapping[str, float], step: int) -> Mapping[str, float]:
        """Those of the state's scores that are to be recorded, at the step of their evaluation."""
        if not self._announced and scores == self._seen:
            return {}
        self._seen = scores
        new = {name: score for name, score in scores.items() if self._is_new(name, score, step)}
        if new:
            self._announced = set()
            self._recorded |= {name: (step, score) for name, score in new.items()}
        return new

    def _is_new(self, name: str, score: float, step: int) -> bool:
        recorded_at, recorded = self._recorded.get(name, (None, None))
        return recorded != score or (name in self._announced and recorded_at != step)
