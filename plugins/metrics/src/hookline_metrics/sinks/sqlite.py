"""The stats database: `stats.sqlite` in the run's folder.

    metrics(step INTEGER, epoch INTEGER, name TEXT, value REAL, time REAL, low REAL, high REAL, count INTEGER)

One row for each metric of each report. `step` is the gradient step, `epoch` the epoch (NULL before the first), `time`
when it was recorded, in seconds since 1970. A NaN is stored as NULL, since SQLite has no NaN. An infinity is stored as
such, so use `WHERE abs(value) < 9e999` to average.

Metrics that are reported more than 50 times a second have, after the first thousand, one row for each half second:
`value` is their mean, `low` and `high` are the extremes, `count` is the number of reports, and `step` the last of them.
In all other rows these three are NULL. `steps = "all"` in the plugin's options writes a row for each report.

The database has a write-ahead log. Readers and the writer never wait for each other, and what was committed before a
kill is still there after it. All reports of a step are in one transaction, unless some come much later. There is an
index by name:

    SELECT step, value FROM metrics WHERE name = 'train/loss' ORDER BY step

Each checkpoint has a row `run/saved`, which is committed before the checkpoint becomes valid. So the database has all
metrics from before a checkpoint, however the process was killed. (A power cut may lose the last commits.) A run that
resumes from a checkpoint first moves all rows after that checkpoint's `run/saved` to the table `superseded`, since it
records them again. So a run that was killed and resumed has the same rows as one that was not, plus one row
`run/started` for each start.

If the row `run/saved` is missing, for example in a new database, the resumed run only appends. Readers then ignore rows
from before a `run/started`, by `rowid`, that are of a later step, and use the last of several rows with one name and
step. `hookline_metrics.run_reader` does that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence, ValuesView
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs.sinks import Report, Run, Sink
from hookline_metrics.sinks import DATABASE, SAVED

__all__ = ["SQLiteSink", "rewind"]

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS metrics"
    "(step INTEGER NOT NULL, epoch INTEGER, name TEXT NOT NULL, value REAL, time REAL NOT NULL,"
    " low REAL, high REAL, count INTEGER)",
    "CREATE INDEX IF NOT EXISTS metrics_by_name ON metrics(name, step)",
)

MAX_ROWS: Final = 4000
"""Rows in one INSERT statement. SQLite allows 32766 values, and a row has eight."""


class SQLiteSink(Sink):
    """Writes reports as rows, in one transaction for each call of `write`."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self._connection = _open(run.folder / DATABASE)

    def write(self, reports: Sequence[Report]) -> None:
        """Add all rows of these reports, or none."""
        values: list[Any] = []
        for step, epoch, numbers, time, window in reports:
            columns = [repeat(step), repeat(epoch), numbers, numbers.values(), repeat(time)]
            spread = (None, None, None) if window is None else (window.low.values(), window.high.values(), window.count)
            columns += [own if isinstance(own, ValuesView) else repeat(own) for own in spread]
            values.extend(chain.from_iterable(zip(*columns, strict=False)))
        with self._connection as connection:
            # sqlite3 releases the GIL for each statement and then waits to get it back from the training thread. So
            # one statement with many rows is faster than many statements, although it has to be compiled each time.
            for start in range(0, len(values), 8 * MAX_ROWS):
                part = values[start : start + 8 * MAX_ROWS]
                rows = ",".join(["(?,?,?,?,?,?,?,?)"] * (len(part) // 8))
                connection.execute(f"INSERT INTO metrics VALUES {rows}", part)

    def close(self) -> None:
        """Move the log into the database file and close it."""
        self._connection.close()


def rewind(folder: Path, saved_at: float | None) -> None:
    """Move the rows after a checkpoint to the table `superseded`, since the resumed run records them again.

    :param saved_at: the time of the checkpoint's row `run/saved`; None for a run that starts over.
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
    # check_same_thread: the sink's thread does all work, but another may have to close the connection at exit.
    # cached_statements: statements are long and hardly ever the same, so few are cached.
    # An absolute path, since some builds of SQLite read a path that begins with `file:` as a URI.
    connection = sqlite3.connect(path.absolute(), check_same_thread=False, cached_statements=4)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # Saves an fsync for each commit. With a write-ahead log, only a power cut can lose commits, never a kill.
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            for statement in SCHEMA:
                connection.execute(statement)
    except sqlite3.Error:
        connection.close()
        raise
    return connection
