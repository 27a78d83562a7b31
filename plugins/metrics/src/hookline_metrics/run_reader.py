"""Reads a run's folder: the metrics in `stats.sqlite`, and whether the run is running, finished or failed.

A resumed run may have several rows for one name and step. The latest is used. Where training started again from an
earlier step (`run/started`), older rows of later steps are ignored.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from hookline_hookspecs import HooklineError
from hookline_hookspecs.sinks import STARTED
from hookline_metrics.sinks import DATABASE
from hookline_metrics.sinks.sqlite import SCHEMA

__all__ = ["RunReader", "Series", "UnreadableRunError", "is_run", "run_folders"]

State = Literal["running", "finished", "failed", "stopped"]

ALIVE_SECONDS: Final = 120.0
"""A run with an older heartbeat is not running: it was killed, or its training thread has ended."""

# A name stays when its last number is superseded.
NAMES: Final = "SELECT name FROM names WHERE EXISTS (SELECT 1 FROM numbers WHERE numbers.name = names.id) ORDER BY name"
SERIES: Final = (
    "FROM numbers CROSS JOIN reports ON reports.id = numbers.report "
    "WHERE numbers.name = (SELECT id FROM names WHERE name = ?)"
)

LOCK_SECONDS: Final = 1.0
"""How long to wait for another program's lock on the database. A run never locks out readers."""


UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged database raises. `UnicodeDecodeError` if SQLite's own message quotes a name that is not UTF-8."""


class UnreadableRunError(HooklineError):
    """The metrics of a run cannot be read. The message names the file and the reason."""


@dataclass(frozen=True)
class Series:
    """One metric over the steps of a run, one value for each step."""

    name: str
    steps: list[int]
    values: list[float]
    """NaN where the metric was NaN."""
    times: list[float]

    @property
    def last(self) -> float:
        return self.values[-1]


class RunReader:
    """Reads a run's folder, also while the run is going on. `with RunReader(folder) as run: ...`"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._connection = _open(folder / DATABASE)

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._connection.close()

    # -- metrics --------------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> list[str]:
        """The names of all metrics, sorted."""
        return [name for (name,) in self._query(NAMES)]

    def series(self, name: str) -> Series:
        """The values of one metric."""
        rows = self._query(f"SELECT step, value, time {SERIES} AND {self._counts} ORDER BY step, id", name)
        by_step = {step: (math.nan if value is None else value, when) for step, value, when in rows}
        return Series(name, list(by_step), [value for value, _ in by_step.values()], [t for _, t in by_step.values()])

    def last(self, name: str) -> float | None:
        """The value at the last step that has one. None if the metric was always NaN."""
        found = self._query(
            f"SELECT value {SERIES} AND value IS NOT NULL AND {self._counts} ORDER BY step DESC, id DESC LIMIT 1", name
        )
        return found[0][0] if found else None

    @cached_property
    def _counts(self) -> str:
        """A SQL condition that leaves out reports from before a resume that are later than its first step."""
        starts = self._query(f"SELECT id, step {SERIES} ORDER BY id", STARTED)
        return " AND ".join(["1"] + [f"NOT (id < {report:d} AND step > {step:d})" for report, step in starts])

    def _query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except UNREADABLE as error:
            raise _unreadable(self.folder / DATABASE, error) from error

    # -- the run --------------------------------------------------------------------------------------------------

    @cached_property
    def step(self) -> int:
        """The last gradient step that has a metric."""
        return self._last_report[0]

    @cached_property
    def epoch(self) -> int | None:
        """The last epoch. None before the first."""
        return self._last_report[1]

    @cached_property
    def started(self) -> float | None:
        return self._time("min")

    @cached_property
    def updated(self) -> float | None:
        return self._time("max")

    def _time(self, extreme: str) -> float | None:
        found = self._query(f"SELECT time FROM reports WHERE id = (SELECT {extreme}(id) FROM reports)")
        return float(found[0][0]) if found else None

    @cached_property
    def _last_report(self) -> tuple[int, int | None]:
        """Step and epoch of the last report of the last step."""
        found = self._query(f"SELECT step, epoch FROM reports WHERE {self._counts} ORDER BY step DESC, id DESC LIMIT 1")
        step, epoch = found[0] if found else (0, None)
        return int(step), None if epoch is None else int(epoch)

    @cached_property
    def state(self) -> State:
        """Taken from the last row that marks a start or an end, else from `status.json`, else from the heartbeat."""
        marks = self._query(
            "SELECT names.name FROM names CROSS JOIN numbers ON numbers.name = names.id "
            "WHERE names.name IN ('run/started', 'run/completed', 'run/failed') ORDER BY report DESC LIMIT 1"
        )
        ended = {"run/completed": "finished", "run/failed": "failed"}.get(marks[0][0] if marks else "")
        if ended is None and not marks and self.status:
            ended = {"SUCCESS": "finished", "FAILURE": "failed"}.get(str(self.status.get("status")))
        if ended == "finished":
            return "finished"
        if ended == "failed":
            return "failed"
        age = self.heartbeat_age
        return "running" if age is not None and age < ALIVE_SECONDS else "stopped"

    @cached_property
    def heartbeat_age(self) -> float | None:
        """Seconds since the heartbeat file was last touched. None if there is no such file."""
        heartbeat = self.folder / "heartbeat"
        return time.time() - heartbeat.stat().st_mtime if heartbeat.exists() else None

    @cached_property
    def status(self) -> dict[str, Any] | None:
        """The last entry of `status.json`. None if there is none."""
        entries = _read_json(self.folder / "status.json")
        return entries[-1] if isinstance(entries, list) and entries and isinstance(entries[-1], dict) else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The contents of `config.json`. Empty if there is none."""
        config = _read_json(self.folder / "config.json")
        return config if isinstance(config, dict) else {}

    @property
    def task(self) -> str | None:
        """The name of the task in the config. None if there is none."""
        task = self.config.get("task")
        return task if isinstance(task, str) else None


def is_run(folder: Path) -> bool:
    """Whether this is the folder of a run. A folder without read permission counts as an unreadable run."""
    try:
        return any((folder / name).is_file() for name in (DATABASE, "config.json", "heartbeat"))
    except PermissionError:
        return True


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path)) if folder.is_dir() else []


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError):
        return None


def _open(path: Path) -> sqlite3.Connection:
    try:
        # A run that was killed before its first metric has an empty file or none.
        if not path.exists() or path.stat().st_size == 0:
            connection = sqlite3.connect(":memory:")
            for statement in SCHEMA:
                connection.execute(statement)
            return connection
        return _open_file(path)
    except (OSError, *UNREADABLE) as error:
        raise _unreadable(path, error) from error


def _open_file(path: Path) -> sqlite3.Connection:
    # `mode=rw`, since a reader of a WAL database shares its index file, and the last reader must be able to remove it.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=LOCK_SECONDS)
    try:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("SELECT step, epoch, name, value, time FROM metrics LIMIT 1").fetchall()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise
        # In a read-only folder there is no writer, so the file can be read as it is.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    except UNREADABLE:
        connection.close()
        raise
    return connection


def _unreadable(path: Path, error: Exception) -> UnreadableRunError:
    return UnreadableRunError(f"{path} cannot be read: {error}")
