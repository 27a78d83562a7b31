"""The spool: messages on disk until they are delivered, an SQLite database.

    messages(id INTEGER PRIMARY KEY, key TEXT, kind INTEGER, body TEXT)

`id` is the order of delivery and `key` goes with every attempt to deliver, so that a receiver can tell a message that
comes a second time. `body` is what is sent; no address and no token is in it. The journal is a write-ahead log: what
was committed before a kill is there after it.
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from hookline_status.messages import Kind

__all__ = ["SPOOL_NAME", "Spool", "SpooledMessage"]

logger = logging.getLogger("hookline.status")

SPOOL_NAME: Final = "status-spool.sqlite"

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS messages"
    "(id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS messages_by_kind ON messages(kind, id)",
)


class SpooledMessage(NamedTuple):
    """A message that waits for its delivery."""

    id: int
    key: str
    body: str


class Spool:
    """One thread's connection to a spool. Threads and processes may have one each."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self._capacity = capacity
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # no disk space, no permission, a lock: the file itself may be good
            self._put_aside()
            logger.warning(
                "%s cannot be read (%s): it is kept as %s.broken, and a new one begun", path, error, path.name
            )
            self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        # Absolute, since some builds of SQLite take a path that begins with `file:` for an address with parameters.
        connection = sqlite3.connect(self.path.absolute(), timeout=10.0)
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

    def _put_aside(self) -> None:
        for suffix in ("", "-wal", "-shm"):  # the log of another database must not be taken for the new one's
            part = self.path.with_name(f"{self.path.name}{suffix}")
            if part.exists():
                part.replace(self.path.with_name(f"{self.path.name}.broken{suffix}"))

    def add(self, messages: Iterable[tuple[Kind, str]]) -> int:
        """Add messages in one transaction; returns how many others had to make room, the least worth first."""
        rows = [(uuid.uuid4().hex, int(kind), body) for kind, body in messages]
        with self._connection:
            self._connection.executemany("INSERT INTO messages(key, kind, body) VALUES (?, ?, ?)", rows)
            excess = len(self) - self._capacity
            if excess <= 0:
                return 0
            return self._connection.execute(
                "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE kind < ? ORDER BY kind, id LIMIT ?)",
                (int(Kind.TERMINAL), excess),
            ).rowcount

    def oldest(self, limit: int) -> list[SpooledMessage]:
        rows = self._connection.execute("SELECT id, key, body FROM messages ORDER BY id LIMIT ?", (limit,))
        return [SpooledMessage(*row) for row in rows]

    def remove(self, message: SpooledMessage) -> None:
        with self._connection:
            self._connection.execute("DELETE FROM messages WHERE id = ?", (message.id,))

    def __len__(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM messages INDEXED BY messages_by_kind").fetchone()
        return int(count)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
