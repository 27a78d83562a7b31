"""The stats database: `stats.sqlite` in the run's folder.

    metrics(step INTEGER, epoch INTEGER, name TEXT, value REAL, time REAL, low REAL, high REAL, count INTEGER)

has a row for each metric of each report. `step` is the gradient step, `epoch` the epoch (NULL before the first), `time`
when it was recorded, in seconds since 1970. A NaN is stored as NULL, since SQLite has no NaN. An infinity is stored as
such, so use `WHERE abs(value) < 9e999` to average.

    SELECT step, value FROM metrics WHERE name = 'train/loss' ORDER BY step

Metrics that come too fast have one row for each second (see `hookline_metrics.sinks.condenser`): `value` is their mean,
`low` and `high` are the extremes, `count` is the number of reports, and `step` the last of them. In all other rows
these three are NULL. `steps = "all"` in the plugin's options writes a row for each report.

`metrics` is a view. To store a name, step and time once and not in every row makes the file half as large:

    names(id, name)      reports(id, step, epoch, time, count)      numbers(name, report, value, low, high)

`numbers` is sorted by name and report, so that a curve is read without an index. Reports are numbered in the order in
which they were written.

The database has a write-ahead log. Readers and the writer never wait for each other, and what was committed before a
kill is still there after it. All reports of a step are in one transaction, unless some come much later.

Each checkpoint has a row `run/saved`, which is committed before the checkpoint becomes valid. So the database has all
metrics from before a checkpoint, however the process was killed. (A power cut may lose the last commits.) A run that
resumes from a checkpoint first moves all rows after that checkpoint's `run/saved` to the table `superseded`, since it
records them again. So a run that was killed and resumed has the same rows as one that was not, plus one row
`run/started` for each start.

If the row `run/saved` is missing, for example in a new database, the resumed run only appends. Readers then ignore
reports before the one of a `run/started` that are of a later step, and use the last of several rows with one name and
step. `hookline_metrics.run_reader` does that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs.sinks import Report, Run, Sink
from hookline_metrics.sinks import DATABASE, SAVED

__all__ = ["SQLiteSink", "rewind"]

JOINED: Final = (
    # CROSS JOIN, since SQLite joins in the given order then: from the name to its numbers to their reports.
    "names CROSS JOIN numbers ON numbers.name = names.id CROSS JOIN reports ON reports.id = numbers.report"
)
ROWS: Final = f"SELECT step, epoch, names.name AS name, value, time, low, high, count FROM {JOINED}"
SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS names(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS reports"
    "(id INTEGER PRIMARY KEY, step INTEGER NOT NULL, epoch INTEGER, time REAL NOT NULL, count INTEGER)",
    "CREATE TABLE IF NOT EXISTS numbers(name INTEGER NOT NULL, report INTEGER NOT NULL, value REAL, low REAL, "
    "high REAL, PRIMARY KEY (name, report)) WITHOUT ROWID",
    f"CREATE VIEW IF NOT EXISTS metrics AS {ROWS}",
)

COLUMNS: Final = 5
"""Columns of `reports` and of `numbers`."""
MAX_ROWS: Final = 6000
"""Rows in one INSERT statement. SQLite allows 32766 values."""


class SQLiteSink(Sink):
    """Writes reports as rows, in one transaction for each call of `write`."""

    def __init__(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self._connection = _open(run.folder / DATABASE)
        self._ids: dict[str, int] = dict(self._connection.execute("SELECT name, id FROM names"))
        (self._last_report,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM reports").fetchone()

    def write(self, reports: Sequence[Report]) -> None:
        """Add all rows of these reports, or none."""
        # Kept only after the commit: what fails is rolled back, names too.
        ids, last = dict(self._ids), self._last_report
        heads: list[Any] = []
        rows: list[Any] = []
        for step, epoch, numbers, time, window in reports:
            if not numbers:
                continue
            last += 1
            for name in numbers:
                ids.setdefault(name, len(ids) + 1)
            low, high = (repeat(None), repeat(None)) if window is None else (window.low.values(), window.high.values())
            heads += last, step, epoch, time, None if window is None else window.count
            own = zip(map(ids.__getitem__, numbers), repeat(last), numbers.values(), low, high, strict=False)
            rows.extend(chain.from_iterable(own))
        with self._connection as connection:
            new = list(ids.items())[len(self._ids) :]
            connection.executemany("INSERT INTO names(name, id) VALUES (?, ?)", new)
            _insert(connection, "reports", heads)
            _insert(connection, "numbers", rows)
        self._ids, self._last_report = ids, last

    def close(self) -> None:
        """Move the log into the database file and close it."""
        self._connection.close()


def _insert(connection: sqlite3.Connection, table: str, values: list[Any]) -> None:
    # sqlite3 releases the GIL for each statement and then waits to get it back from the training thread. So one
    # statement with many rows is faster than many statements, although it has to be compiled each time.
    for start in range(0, len(values), COLUMNS * MAX_ROWS):
        part = values[start : start + COLUMNS * MAX_ROWS]
        rows = ",".join(["(?,?,?,?,?)"] * (len(part) // COLUMNS))
        connection.execute(f"INSERT INTO {table} VALUES {rows}", part)


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
            marks = f"SELECT max(reports.id) FROM {JOINED} WHERE names.name = ? AND time = ?"
            (mark,) = connection.execute(marks, (SAVED, saved_at)).fetchone()
        if mark is not None:
            connection.execute("CREATE TABLE IF NOT EXISTS superseded AS SELECT * FROM metrics WHERE 0")
            connection.execute(f"INSERT INTO superseded {ROWS} WHERE reports.id > ?", (mark,))
            connection.execute("DELETE FROM numbers WHERE report > ?", (mark,))
            connection.execute("DELETE FROM reports WHERE id > ?", (mark,))


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
