"""The stats database: `stats.sqlite` in the run's folder.

    metrics(step INTEGER, epoch INTEGER, name TEXT, value REAL, time REAL)

One row for each number of each report. `step` is the gradient step that it belongs to, `epoch` the epoch (NULL when the
report came before any), `time` when it was recorded, in seconds since 1970. A NaN is a NULL `value`, since SQLite has
none; an infinity is itself, so a reader that averages says `WHERE abs(value) < 9e999`.

The journal is a write-ahead log: readers never wait for the writer nor hold it up, and what was committed before a kill
is there after it. A report is in one transaction with all others of its step, unless they came long after it. Read one
metric by name, which the index is for:

    SELECT step, value FROM metrics WHERE name = 'train/loss' ORDER BY step

A row `run/saved` is written when a checkpoint is taken, and the checkpoint becomes valid after it: what was recorded
before a checkpoint is here when a run goes on from it, whatever killed the process. A power cut, which may take the
last commits with it, is another matter. A run that goes on from a checkpoint first moves all rows after that
checkpoint's `run/saved` to the table `superseded`, for it records them again; so a run that was killed and resumed has
the rows of one that was not, each once, and besides a row `run/started` at each step that training started from.

Where that row is not found, as in a database that was copied or made anew, the resumed run appends: what an earlier
row, by `rowid`, says of a step later than a `run/started` has not happened in the run that goes on, and of several rows
for one name and step the last counts. `hookline_metrics.reading` has that as code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

from hookline_metrics.sinks.sink import DATABASE, SAVED, Report, Run

__all__ = ["SQLiteSink", "rewind"]

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


def rewind(folder: Path, saved_at: float | None) -> None:
    """Take away the rows that came after a checkpoint, since the run that goes on from it records them again.

    :param saved_at: the time of the checkpoint's row `run/saved`; None for a run that begins anew.
    """
    path = folder / DATABASE
    if not path.exists():
        return
    with closing(_open(path)) as connection, connection:
        mark: int | None = 0
        if saved_at is not None:
            marks = "SELECT max(rowid) FROM metrics WHERE name = ? AND time = ?"
            (mark,) = connection.execute(marks, (SAVED, saved_at)).fetchone()
        if mark is not None:
            connection.execute("CREATE TABLE IF NOT EXISTS superseded AS SELECT * FROM metrics WHERE 0")
            connection.execute("INSERT INTO superseded SELECT * FROM metrics WHERE rowid > ?", (mark,))
            connection.execute("DELETE FROM metrics WHERE rowid > ?", (mark,))


def _open(path: Path) -> sqlite3.Connection:
    # The sink's thread opens, writes and closes; at the end of the interpreter another may have to close.
    # Few statements are kept, for they are long and hardly ever the same.
    # Absolute, since some builds of SQLite take a path that begins with `file:` for an address with parameters.
    connection = sqlite3.connect(path.absolute(), check_same_thread=False, cached_statements=4)
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
