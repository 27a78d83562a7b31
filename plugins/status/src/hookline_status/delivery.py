"""Delivery: from `put`, which costs the training thread about a microsecond, to an endpoint that may be dead.

    put -> inbox (memory) -> keeper thread -> spool (SQLite) -> sender thread -> endpoint

Two threads, since an endpoint that hangs must not keep messages from being written to disk. Everything is bounded: what
does not fit is dropped and counted, the oldest heartbeats first and a terminal status never.
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
from hookline_status.inbox import Inbox
from hookline_status.keeper import Keeper
from hookline_status.messages import Kind, Message
from hookline_status.pulse import Pulse
from hookline_status.sender import Sender
from hookline_status.spool import SPOOL_NAME

__all__ = ["CAPACITY", "FLUSH_SECONDS", "Delivery", "close_all"]

logger = logging.getLogger("hookline.status")

CAPACITY: Final = 10_000
"""How many messages may wait, in memory and again on disk."""
FLUSH_SECONDS: Final = 4.5
"""How long the end of a run waits for deliveries: it shall be over within 5 s, all included."""


class Delivery:
    """Messages to one endpoint, from the first `put` to `close`.

    :param folder: where the spool is, so that what is left at the end is sent at the next start. None for a temporary
        one, which is kept only when something is left.
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
        self._inbox = Inbox(capacity)
        mail = threading.Event()
        self._keeper = Keeper(self._inbox, self.path, capacity, mail)
        self._sender = Sender(endpoint, self.path, self._keeper, backoff or Backoff(), mail)
        # Daemons, so that a request that hangs cannot keep the process alive past the deadline.
        self._threads = [
            threading.Thread(target=self._keeper.run, name="hookline-status-keeper", daemon=True),
            threading.Thread(target=self._sender.run, name="hookline-status-sender", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        _open.add(self)

    def put(self, message: Message) -> None:
        """Have a message delivered. Never waits."""
        self._inbox.put(message)
        if message.kind is Kind.TERMINAL:
            self._keeper.hurry()

    def watch(self, pulse: Pulse) -> None:
        """Send heartbeats as long as this pulse moves."""
        self._keeper.pulses.append(pulse)

    @property
    def dropped(self) -> int:
        """How many messages were given up: there was no room, or the endpoint refused them."""
        spool = self._keeper.spool
        unusable = 0 if spool is None else spool.unusable
        return self._inbox.dropped + self._keeper.dropped + self._sender.rejected + unusable

    @property
    def waiting(self) -> int:
        """About how many messages are not delivered yet."""
        return len(self._inbox) + self._keeper.waiting

    def begin_close(self, seconds: float | None = None) -> None:
        """Deliver what is there within so many seconds (default: `FLUSH_SECONDS`), and end. Does not wait for it."""
        self._give_up_at = time.monotonic() + (FLUSH_SECONDS if seconds is None else seconds)
        self._keeper.close()
        self._sender.close(self._give_up_at)

    def wait_closed(self) -> None:
        """Wait for the end that `begin_close` has announced, and say what was not delivered and where it is."""
        _open.discard(self)
        for thread in self._threads:
            thread.join(max(0.0, self._give_up_at - time.monotonic()))
        kept, lost = self._left(), len(self._inbox) + self._keeper.in_hand
        if self._keeper.spool is not None and not any(thread.is_alive() for thread in self._threads):
            self._keeper.spool.close()
        if kept:
            logger.warning(
                "%d status messages for %s were not delivered in time: they are in %s, and sent when %s",
                kept,
                self.endpoint.shown,
                self.path,
                f"spool_dir is {str(self.path.parent)!r}" if self._is_temporary else "it is used again",
            )
        elif self._is_temporary:
            shutil.rmtree(self.path.parent, ignore_errors=True)
        if lost:
            logger.warning(
                "%d status messages for %s are lost: they could not be written to %s (%s)",
                lost,
                self.endpoint.shown,
                self.path,
                self._keeper.error or "there was no time left",
            )

    def _left(self) -> int:
        """How many messages the spool holds, by its own count where it can be asked."""
        try:
            return 0 if self._keeper.spool is None else len(self._keeper.spool)
        except (sqlite3.Error, OSError):
            return self._keeper.waiting

    def close(self, seconds: float | None = None) -> None:
        """Deliver what is there, and give up after so many seconds; the rest stays in the spool."""
        self.begin_close(seconds)
        self.wait_closed()


_open: set[Delivery] = set()


def close_all(seconds: float | None = None) -> None:
    """Close all deliveries that are open. They share the time: it is what the process may take to exit."""
    closing = list(_open)
    for delivery in closing:
        delivery.begin_close(seconds)
    for delivery in closing:
        delivery.wait_closed()


atexit.register(close_all)  # for runs whose end is never announced
