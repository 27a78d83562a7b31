"""The thread that writes queued messages to the spool on disk, and creates heartbeats."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hookline_status.heartbeat import Heartbeat
from hookline_status.message_queue import MessageQueue
from hookline_status.messages import Kind, Message, encode
from hookline_status.spool import Spool

__all__ = ["SpoolWriter"]

logger = logging.getLogger("hookline.status")

LOOK_SECONDS: Final = 0.1
"""The queue is polled at this interval. Waking a thread for each message would slow training."""


class SpoolWriter:
    """Writes messages to the spool, independent of the endpoint."""

    def __init__(self, queue: MessageQueue, path: Path, capacity: int, has_work: threading.Event) -> None:
        self.heartbeats: list[Heartbeat] = []
        self.dropped = 0
        self.waiting = 0
        """How many messages the spool had at the last poll."""
        self.spool: Spool | None = None
        """The spool that this thread fills and the sender empties. None until it is open."""
        self.being_written = 0
        """How many messages are being written right now."""
        self.error: Exception | None = None
        """Why the last messages could not be written."""
        self.is_ready = threading.Event()
        """Set when the spool is open."""
        self.is_done = threading.Event()
        """Set when the last messages have been written."""
        self._queue = queue
        self._path = path
        self._capacity = capacity
        self._has_work = has_work
        self._wake = threading.Event()
        self._closing = False
        self._has_warned = False

    def wake(self) -> None:
        """Poll now rather than at the next interval."""
        self._wake.set()

    def close(self) -> None:
        """Ask the thread to write what is queued, and to end."""
        self._closing = True
        self._wake.set()

    def run(self) -> None:
        try:
            while not self.is_done.is_set():
                self._wake.wait(LOOK_SECONDS)
                self._wake.clear()
                closing = self._closing  # read before the poll, so that the last poll comes after `close`
                try:
                    self.spool = self.spool or Spool(self._path, self._capacity)
                    self.is_ready.set()
                    self._look(self.spool)
                    self.error = None
                except (sqlite3.Error, OSError) as error:
                    self.error = error
                    self._warn(error)
                if closing:
                    self.is_done.set()
        finally:
            self.is_done.set()
            self._has_work.set()

    def _look(self, spool: Spool) -> None:
        taken = self._queue.take()
        messages = [message for _, message in taken]
        ends = [place for place, message in enumerate(messages) if message.kind is Kind.TERMINAL]
        place = ends[0] if ends else len(messages)
        messages[place:place] = self._heartbeats()  # before a terminal status, which is always the last message
        if messages:
            self.being_written = len(taken)
            try:
                self.dropped += spool.add((message.kind, encode(message)) for message in messages)
            except (sqlite3.Error, OSError):
                self._queue.put_back(taken)
                raise
            finally:
                self.being_written = 0
            self._has_work.set()
        if ends:
            for heartbeat in self.heartbeats:
                heartbeat.pause()
        self.waiting = len(spool)

    def _heartbeats(self) -> Iterator[Message]:
        for heartbeat in self.heartbeats:
            for phase, data in heartbeat.due():
                yield Message(Kind.HEARTBEAT, heartbeat.component, time.time(), data, f"{phase}_heartbeat")

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("status messages cannot be written to %s and are kept in memory: %s", self._path, error)
