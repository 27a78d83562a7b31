"""The failures of plugins so far: `failures.json` in the run's folder, a list of

    {"plugin": "status", "event": "on_epoch_end", "times": 3, "what": "ConnectionError: ..."}

`event` and `times` are null where they do not apply. A run in which no plugin failed has no such file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact

__all__ = ["FAILURES", "FailureLog", "read_failures"]

FAILURES: Final = "failures.json"

Failures = list[dict[str, Any]]


class FailureLog:
    """Writes the file when there is a new failure. Called on one thread."""

    def __init__(self) -> None:
        self.current: Callable[[], Failures] = list
        """Returns the failures so far. The session offers it as `state.shared["hookline"]["failures"]`."""
        self._written: Failures | None = None

    def write(self, folder: Path) -> None:
        failures, path = self.current(), folder / FAILURES
        # A resumed run replaces the failures of the process before it.
        if failures != self._written and (failures or path.exists()):
            write_atomically(path, json.dumps(redact(failures, by_names=False), indent=2) + "\n")
        self._written = failures


def read_failures(folder: Path) -> Failures:
    """The failures in a run's folder; none if the file is missing or damaged."""
    try:
        found = json.loads((folder / FAILURES).read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return []
    return [own for own in found if isinstance(own, dict)] if isinstance(found, list) else []
