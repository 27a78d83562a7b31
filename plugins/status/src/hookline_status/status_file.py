"""`status.json`: an array of entries in the format of NVIDIA TAO.

    {"date": "2026-03-01T12:00:00+00:00", "status": "RUNNING", "message": "epoch 3 is complete",
     "data": {"component": "hookline", "epoch": 3, "max_epoch": 10, "step": 32, "max_step": null,
              "time_per_epoch": "0:00:11.500000", "eta": "0:01:09"},
     "kpi": {"train/loss": 0.5}}

The first entry is STARTED, then follow the latest RUNNING ones. A run that has ended has SUCCESS or FAILURE last.
Unknown values are null, and so are NaN and infinities, which JSON does not have.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import Any, Final, Literal

from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact

__all__ = ["KEPT_ENTRIES", "StatusEntry", "StatusFile", "as_kpi", "as_time"]

KEPT_ENTRIES: Final = 100
"""The most entries that the file has after the first."""

MIN_WRITE_INTERVAL: Final = 1.0
"""Seconds between two writes during the run, so that short epochs are not spent on writing the file."""


@dataclass(frozen=True)
class StatusEntry:
    """One entry of `status.json`."""

    date: str
    status: Literal["STARTED", "RUNNING", "SUCCESS", "FAILURE"]
    message: str
    data: Mapping[str, Any]
    kpi: Mapping[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        # Not `asdict`, whose deep copy took most of the time.
        return {field.name: getattr(self, field.name) for field in fields(self)}


class StatusFile:
    """Writes the entries of one run. The file is replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Entries are kept as JSON text, so that each is encoded only once.
        self._first: str | None = None
        self._latest: deque[str] = deque(maxlen=KEPT_ENTRIES)
        self._written_at = -math.inf

    def add(self, entry: StatusEntry) -> None:
        """Add an entry. STARTED starts a new file. RUNNING may be written later, together with the next entry."""
        text = json.dumps(redact(entry.as_dict(), by_names=False), allow_nan=False)
        if entry.status == "STARTED":
            self._first = text
            self._latest.clear()
        else:
            self._latest.append(text)
        now = time.monotonic()
        if entry.status != "RUNNING" or now - self._written_at >= MIN_WRITE_INTERVAL:
            self._written_at = now
            self._write(([self._first] if self._first else []) + list(self._latest))

    def _write(self, entries: list[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, "[\n " + ",\n ".join(entries) + "\n]\n")


def as_kpi(*sources: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of all sources by name, None where not finite. Other values are left out."""
    # `type` first, since nearly all are floats and `isinstance` with an abstract class is slow.
    numbers = {
        name: value
        for source in sources
        for name, value in source.items()
        if type(value) is float or isinstance(value, Real)
    }
    return {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}


def as_time(seconds: float | None) -> str | None:
    """A duration in TAO's format, such as 1:02:03.500000."""
    return None if seconds is None else str(timedelta(seconds=seconds))
