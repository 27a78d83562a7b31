"""The stats database: `stats.sqlite` in the run's folder.

    metrics(step INTEGER, epoch INTEGER, name TEXT, value REAL, time REAL)

One row for each number of each report. `step` is the gradient step that it belongs to, `epoch` the epoch (NULL when the
report came before any), `time` when it was recorded, in seconds since 1970. A NaN is a NULL `value`, since SQLite has
none; an infinity is itself, so a reader that averages says `WHERE abs(value) < 9e999`.

The journal is a write-ahead log: readers never wait for the writer nor hold it up, and what was committed before a kill
is there after it. A report is in one transaction with all others of its step, unless they came long after it. Read one
metric by name, which the index is for:

    SELECT step, value FROM metrics WHERE name = 'train/loss' ORDER BY step

A run that is resumed, or begun anew in the same folder, appends. Each time that training starts there is a row
`run/started` at the step it starts from; what an earlier row, by `rowid`, says of a later step has not happened in the
run that goes on. Of several rows for one name and step the last counts. `hookline_metrics.reading` has that as code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

from hookline_metrics.sinks.sink import DATABASE, Report, Run

__all__ = ["SQLiteSink"]

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS metrics"
    "(step INTEGER NOT NULL, epoch INTEGER, name TEXT NOT NULL, value REAL, time REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS metrics_by_name ON metrics(name, step)",
)

MOST_ROWS: Final = 6000
"""Of one statement, which may have 32766 values."""


class SQLiteSink:
    """Writes rows, one transaction for each call."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self._connection = _open(run.folder / DATABASE)

    def write(self, reports: Sequence[Report]) -> None:
        """Add all numbers of these reports, or none."""
        values: list[Any] = []
        for step, epoch, numbers, time in reports:
            columns = repeat(step), repeat(epoch), numbers, numbers.values(), repeat(time)
            values.extend(chain.from_iterable(zip(*columns, strict=False)))
        with self._connection as connection:
            # The module gives up the interpreter's lock for each statement, and has to win it back from the training
            # thread: one with many rows, though it has to be prepared anew, rather than many with few.
            for start in range(0, len(values), 5 * MOST_ROWS):
                part = values[start : start + 5 * MOST_ROWS]
                rows = ",".join(["(?,?,?,?,?)"] * (len(part) // 5))
                connection.execute(f"INSERT INTO metrics VALUES {rows}", part)

    def close(self) -> None:
        """Move the log into the database file and close it."""
        self._connection.close()


def _open(path: Path) -> sqlite3.Connection:
    # The sink's thread opens, writes and closes; at the end of the interpreter another may have to close.
    # Few statements are kept, for they are long and hardly ever the same.
    connection = sqlite3.connect(path, check_same_thread=False, cached_statements=4)
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
