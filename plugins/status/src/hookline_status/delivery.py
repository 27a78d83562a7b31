"""Delivers messages to an endpoint. A dead endpoint never slows training: `put` takes about a microsecond.

    put -> queue (memory) -> writer thread -> spool (SQLite) -> sender thread -> endpoint

There are two threads, so that an endpoint that hangs does not keep messages from being written to disk. Queue and spool
are bounded. What does not fit is dropped and counted, the oldest heartbeats first and a terminal status never.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from hookline.http.requests import Backoff
from hookline_status.endpoint import Endpoint
from hookline_status.heartbeat import Heartbeat
from hookline_status.message_queue import MessageQueue
from hookline_status.messages import Kind, Message
from hookline_status.sender import Sender
from hookline_status.spool import SPOOL_NAME
from hookline_status.spool_writer import SpoolWriter

__all__ = ["CAPACITY", "FLUSH_SECONDS", "Delivery", "close_all"]

logger = logging.getLogger("hookline.status")

CAPACITY: Final = 10_000
"""The most messages in the queue, and the most in the spool."""
FLUSH_SECONDS: Final = 4.5
"""How long the end of a run waits for deliveries. All in all it may take 5 s."""


class Delivery:
    """Delivers messages to one endpoint, until `close`.

    :param folder: the folder of the spool. Messages that are left at the end are sent at the next start. None for a
        temporary folder, which is kept only if messages are left.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        folder: Path | None = None,
        *,
        capacity: int = CAPACITY,
        backoff: Backoff | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.path = (folder or Path(tempfile.mkdtemp(prefix="hookline-status-"))) / SPOOL_NAME
        self._is_temporary = folder is None
        self._queue = MessageQueue(capacity)
        has_work = threading.Event()
        self._writer = SpoolWriter(self._queue, self.path, capacity, has_work)
        self._sender = Sender(endpoint, self.path, self._writer, backoff or Backoff(), has_work)
        # Daemon threads, so that a request that hangs cannot keep the process alive.
        self._threads = [
            threading.Thread(target=self._writer.run, name="hookline-status-writer", daemon=True),
            threading.Thread(target=self._sender.run, name="hookline-status-sender", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        _open.add(self)

    def put(self, message: Message) -> None:
        """Queue a message. Never blocks."""
        self._queue.put(message)
        if message.kind is Kind.TERMINAL:
            self._writer.wake()

    def add_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Also send these heartbeats."""
        self._writer.heartbeats.append(heartbeat)

    @property
    def dropped(self) -> int:
        """How many messages were dropped, since there was no room or the endpoint rejected them."""
        spool = self._writer.spool
        unusable = 0 if spool is None else spool.unusable
        return self._queue.dropped + self._writer.dropped + self._sender.rejected + unusable

    @property
    def waiting(self) -> int:
        """About how many messages are not delivered yet."""
        return len(self._queue) + self._writer.waiting

    def begin_close(self, seconds: float | None = None) -> None:
        """Ask both threads to deliver the rest within so many seconds (default: `FLUSH_SECONDS`), and to end."""
        self._give_up_at = time.monotonic() + (FLUSH_SECONDS if seconds is None else seconds)
        self._writer.close()
        self._sender.close(self._give_up_at)

    def wait_closed(self) -> None:
        """Wait until `begin_close` is done, and log what was not delivered and where it is kept."""
        _open.discard(self)
        for thread in self._threads:
            thread.join(max(0.0, self._give_up_at - time.monotonic()))
        kept, lost = self._left(), len(self._queue) + self._writer.being_written
        if self._writer.spool is not None and not any(thread.is_alive() for thread in self._threads):
            self._writer.spool.close()
        if kept:
            logger.warning(
                "%d status messages for %s were not delivered in time. They are in %s and will be sent when %s",
                kept,
                self.endpoint.shown,
                self.path,
                f"spool_dir is {str(self.path.parent)!r}" if self._is_temporary else "that folder is used again",
            )
        elif self._is_temporary:
            shutil.rmtree(self.path.parent, ignore_errors=True)
        if lost:
            logger.warning(
                "%d status messages for %s are lost, since they could not be written to %s (%s)",
                lost,
                self.endpoint.shown,
                self.path,
                self._writer.error or "there was no time left",
            )

    def _left(self) -> int:
        """How many messages the spool has, by the last known count if it cannot be read."""
        try:
            return 0 if self._writer.spool is None else len(self._writer.spool)
        except (sqlite3.Error, OSError):
            return self._writer.waiting

    def close(self, seconds: float | None = None) -> None:
        """Deliver the rest and close, within so many seconds. What is not delivered stays in the spool."""
        self.begin_close(seconds)
        self.wait_closed()


_open: set[Delivery] = set()


def close_all(seconds: float | None = None) -> None:
    """Close all open deliveries. They share the time, so that the process exits within it."""
    closing = list(_open)
    for delivery in closing:
        delivery.begin_close(seconds)
    for delivery in closing:
        delivery.wait_closed()


atexit.register(close_all)  # for a run that ends without an event
