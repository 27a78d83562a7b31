"""The spool: messages on disk until they are delivered, an SQLite database.

    messages(id INTEGER PRIMARY KEY, key TEXT, kind INTEGER, body TEXT)

`id` is the order of delivery and `key` goes with every attempt to deliver, so that a receiver can tell a message that
comes a second time. `body` is what is sent; no address and no token is in it. The journal is a write-ahead log: what
was committed before a kill is there after it.

A database that turns out to be damaged, or of another program, whenever that is, is renamed to `...broken`, and a new
one begun in its place. What is not the file's fault, such as a full disk or a lock, is raised, and may pass.
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
"""What `add` makes: anything else in its place was not written here, and could end a header."""

PASSING: Final = frozenset(
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
"""Failures that say nothing of the file's contents: no disk space, no permission, a lock."""


class SpooledMessage(NamedTuple):
    """A message that waits for its delivery."""

    id: int
    key: str
    body: str


class Spool:
    """A spool that several threads share; each call is short."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.unusable = 0
        """Messages that were found in the file and that nothing could be sent of."""
        self._capacity = capacity
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection: sqlite3.Connection | None = None
        self._do(lambda connection: connection.execute("SELECT 1"))

    def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with the database in one transaction; if it is damaged, with a new one."""
        with self._lock:
            try:
                return self._attempt(act)
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                # A name in a damaged file may be no text, and then the message that quotes it is none either.
                if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in PASSING:
                    raise
                self._set_aside(error)
                return self._attempt(act)

    def _attempt(self, act: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection = self._connection or self._open()
        with connection:
            return act(connection)

    def _open(self) -> sqlite3.Connection:
        # Absolute, since some builds of SQLite take a path that begins with `file:` for an address with parameters.
        connection = sqlite3.connect(self.path.absolute(), timeout=10.0, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # In a write-ahead log this loses commits to a power cut at worst, never to a kill, and saves an fsync each.
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                for statement in SCHEMA:
                    connection.execute(statement)
            # Looked for now, and not when the first message is to be read: others would be added until then.
            (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if problem != "ok":
                raise sqlite3.DatabaseError(problem)
            connection.execute("SELECT id, key, kind, body FROM messages LIMIT 1")
            connection.text_factory = bytes  # text that cannot be decoded costs its own message alone
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: Exception) -> None:
        # Closed first: a connection to a file that was renamed would remove the log of the one in its place.
        self._close()
        names = (f"{self.path.name}.broken{f'-{n}' if n > 1 else ''}" for n in itertools.count(1))
        aside = next(place for name in names if not (place := self.path.with_name(name)).exists())
        for suffix in ("", "-wal", "-shm"):  # the log of another database must not be taken for the new one's
            part = self.path.with_name(f"{self.path.name}{suffix}")
            if part.exists():
                part.replace(aside.with_name(f"{aside.name}{suffix}"))
        logger.warning(
            "%s cannot be read (%s): it is kept as %s with the messages in it, which are not delivered, "
            "and a new one is begun",
            self.path,
            error,
            aside.name,
        )

    def add(self, messages: Iterable[tuple[Kind, str]]) -> int:
        """Add messages in one transaction; returns how many others had to make room, the least worth first."""
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
        """The messages that are to be sent next. What was not written here makes way."""

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
    """A message as it was added; None for a row that nothing can be sent of."""
    try:
        if isinstance(key, bytes) and isinstance(body, bytes) and KEY.fullmatch(key):
            return SpooledMessage(number, key.decode(), body.decode())
    except UnicodeDecodeError:
        pass
    return None
