"""The thread that takes messages from memory to disk, and that makes heartbeats."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hookline_status.inbox import Inbox
from hookline_status.messages import Kind, Message, encode
from hookline_status.pulse import Pulse
from hookline_status.spool import Spool

__all__ = ["Keeper"]

logger = logging.getLogger("hookline.status")

LOOK_SECONDS: Final = 0.1
"""Messages are picked up at this interval, not announced one by one: waking a thread for each would cost training."""


class Keeper:
    """Keeps messages safe, whatever the endpoint does meanwhile."""

    def __init__(self, inbox: Inbox, path: Path, capacity: int, mail: threading.Event) -> None:
        self.pulses: list[Pulse] = []
        self.dropped = 0
        self.waiting = 0
        """How many messages the spool held at the last look."""
        self.spool: Spool | None = None
        """The spool that this thread fills and another empties; None until it could be opened."""
        self.in_hand = 0
        """Messages that are being written just now."""
        self.error: Exception | None = None
        """What kept the last messages from being written."""
        self.is_ready = threading.Event()
        """Set when the spool is open."""
        self.is_done = threading.Event()
        """Set when the last messages have been written."""
        self._inbox = inbox
        self._path = path
        self._capacity = capacity
        self._mail = mail
        self._wake = threading.Event()
        self._closing = False
        self._has_warned = False

    def hurry(self) -> None:
        """Look now rather than at the next interval."""
        self._wake.set()

    def close(self) -> None:
        """Have what is there written, and end."""
        self._closing = True
        self._wake.set()

    def run(self) -> None:
        try:
            while not self.is_done.is_set():
                self._wake.wait(LOOK_SECONDS)
                self._wake.clear()
                closing = self._closing  # read before the look, which then is the last
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
            self._mail.set()

    def _look(self, spool: Spool) -> None:
        taken = self._inbox.take()
        messages = [message for _, message in taken]
        ends = [place for place, message in enumerate(messages) if message.kind is Kind.TERMINAL]
        place = ends[0] if ends else len(messages)
        messages[place:place] = self._heartbeats()  # nothing comes after a terminal status
        if messages:
            self.in_hand = len(taken)
            try:
                self.dropped += spool.add((message.kind, encode(message)) for message in messages)
            except (sqlite3.Error, OSError):
                self._inbox.put_back(taken)
                raise
            finally:
                self.in_hand = 0
            self._mail.set()
        if ends:
            for pulse in self.pulses:
                pulse.rest()
        self.waiting = len(spool)

    def _heartbeats(self) -> Iterator[Message]:
        for pulse in self.pulses:
            for phase, data in pulse.due():
                yield Message(Kind.HEARTBEAT, pulse.component, time.time(), data, f"{phase}_heartbeat")

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("status messages cannot be kept in %s, and wait in memory: %s", self._path, error)
