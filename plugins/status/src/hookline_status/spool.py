"""The spool: a SQLite database of messages that are not delivered yet.

    messages(id INTEGER PRIMARY KEY, key TEXT, kind INTEGER, body TEXT)

`id` is the order of delivery. `key` is sent with every attempt, so that a receiver can recognise a message that comes
twice. `body` is the JSON to send; it has no address and no token. The database has a write-ahead log, so what was
committed before a kill is still there after it.

A database that is damaged or belongs to another program is renamed to `...broken`, and a new one is created. Errors
that are not the file's fault, such as a full disk or a lock, are raised, since they may pass.
"""

from __future__ import annotations

import itertools
import logging
import re
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from hookline_status.messages import Kind

__all__ = ["SPOOL_NAME", "Spool", "SpooledMessage"]

logger = logging.getLogger("hookline.status")

T = TypeVar("T")

SPOOL_NAME: Final = "status-spool.sqlite"

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS messages"
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS messages_by_kind ON messages(kind, id)",
)


KEY: Final = re.compile(b"[0-9a-f]{32}")
"""The form of a key. Another program's text is not sent, since a line break in it would end the HTTP header."""

TRANSIENT: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
"""Errors that do not mean a damaged file: no disk space, no permission, a lock."""


class SpooledMessage(NamedTuple):
    """A message to be delivered."""

    id: int
    key: str
    body: str


class Spool:
    """Thread-safe. Each call is short."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.unusable = 0
        """How many messages in the file were invalid and could not be sent."""
        self._capacity = capacity
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection: sqlite3.Connection | None = None
        self._do(lambda connection: connection.execute("SELECT 1"))

    def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run `act` in one transaction. If the database is damaged, run it again with a new one."""
        with self._lock:
            try:
                return self._attempt(act)
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                # UnicodeDecodeError: SQLite's message quotes a name of the damaged file that is not UTF-8.
                if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in TRANSIENT:
                    raise
                self._replace_damaged(error)
                return self._attempt(act)

    def _attempt(self, act: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection = self._connection or self._open()
        with connection:
            return act(connection)

    def _open(self) -> sqlite3.Connection:
        # An absolute path, since some builds of SQLite read a path that begins with `file:` as a URI.
        connection = sqlite3.connect(self.path.absolute(), timeout=10.0, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # Saves an fsync for each commit. With a write-ahead log, only a power cut can lose commits, never a kill.
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                for statement in SCHEMA:
                    connection.execute(statement)
            # Checked now, since messages added to a damaged file would be lost with it.
            (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if problem != "ok":
                raise sqlite3.DatabaseError(problem)
            connection.execute("SELECT id, key, kind, body FROM messages LIMIT 1")
            connection.text_factory = bytes  # so that text that cannot be decoded affects only its own message
        except BaseException:
            connection.close()
            raise
        return connection

    def _replace_damaged(self, error: Exception) -> None:
        # Closed first, since closing it after the rename would remove the log of the new database.
        self._close()
        names = (f"{self.path.name}.broken{f'-{n}' if n > 1 else ''}" for n in itertools.count(1))
        aside = next(place for name in names if not (place := self.path.with_name(name)).exists())
        for suffix in ("", "-wal", "-shm"):  # SQLite would read the old log as the new database's
            part = self.path.with_name(f"{self.path.name}{suffix}")
            if part.exists():
                part.replace(aside.with_name(f"{aside.name}{suffix}"))
        logger.warning(
            "%s cannot be read (%s). It is renamed to %s, its messages are not delivered, and a new one is created",
            self.path,
            error,
            aside.name,
        )

    def add(self, messages: Iterable[tuple[Kind, str]]) -> int:
        """Add messages in one transaction. Returns how many others were dropped to make room, lowest priority first."""
        rows = [(uuid.uuid4().hex, int(kind), body) for kind, body in messages]

        def add(connection: sqlite3.Connection) -> int:
            connection.executemany("INSERT INTO messages(key, kind, body) VALUES (?, ?, ?)", rows)
            excess = _count(connection) - self._capacity
            if excess <= 0:
                return 0
            return connection.execute(
                "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE kind < ? ORDER BY kind, id LIMIT ?)",
                (int(Kind.TERMINAL), excess),
            ).rowcount

        return self._do(add)

    def oldest(self, limit: int) -> list[SpooledMessage]:
        """The next messages to send. Removes invalid ones."""

        def oldest(connection: sqlite3.Connection) -> list[SpooledMessage]:
            rows = connection.execute("SELECT id, key, body FROM messages ORDER BY id LIMIT ?", (limit,)).fetchall()
            messages = [_message(*row) for row in rows]
            bad = [(row[0],) for row, message in zip(rows, messages, strict=True) if message is None]
            connection.executemany("DELETE FROM messages WHERE id = ?", bad)
            self.unusable += len(bad)
            return [message for message in messages if message is not None]

        return self._do(oldest)

    def remove(self, message: SpooledMessage) -> None:
        self._do(lambda connection: connection.execute("DELETE FROM messages WHERE id = ?", (message.id,)))

    def __len__(self) -> int:
        return self._do(_count)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _count(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM messages INDEXED BY messages_by_kind").fetchone()
    return int(count)


def _message(number: int, key: object, body: object) -> SpooledMessage | None:
    """The message of a row. None if the row is invalid."""
    try:
        if isinstance(key, bytes) and isinstance(body, bytes) and KEY.fullmatch(key):
            return SpooledMessage(number, key.decode(), body.decode())
    except UnicodeDecodeError:
        pass
    return None
