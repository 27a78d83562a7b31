"""The stats database: `stats.sqlite` in the run's folder.

    metrics(step INTEGER, epoch INTEGER, name TEXT, value REAL, time REAL)

One row for each number of each report. `step` is the gradient step that it belongs to, `epoch` the epoch (NULL when the
report came before any), `time` when it was recorded, in seconds since 1970. A NaN is a NULL `value`, since SQLite has
none; an infinity is itself, so a reader that averages says `WHERE abs(value) < 9e999`.

The journal is a write-ahead log: readers never wait for the writer nor hold it up, and what was committed before a kill
is there after it. Each report is one transaction. Read one metric by name, which the index is for:

    SELECT step, value FROM metrics WHERE name = 'train/loss' ORDER BY step
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Row", "StatsDatabase"]

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS metrics"
    "(step INTEGER NOT NULL, epoch INTEGER, name TEXT NOT NULL, value REAL, time REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS metrics_by_name ON metrics(name, step)",
)


class Row(NamedTuple):
    """One number of one report."""

    step: int
    epoch: int | None
    name: str
    value: float
    time: float


class StatsDatabase:
    """Writes rows. Opened by the first write, and again by a write after `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def write(self, rows: Iterable[Row]) -> None:
        """Add rows in one transaction: all of them, or none."""
        if self._connection is None:
            self._connection = self._open()
        with self._connection:
            self._connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        # The plugin's background thread opens and writes; whoever ends the run may be another.
        connection = sqlite3.connect(self.path, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # In a write-ahead log this loses commits to a power cut at worst, never to a kill, and saves an fsync each.
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                for statement in SCHEMA:
                    connection.execute(statement)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Move the log into the database file and close it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
