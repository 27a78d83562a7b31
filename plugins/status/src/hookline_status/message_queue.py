"""A bounded queue between the training thread and the thread that writes messages to disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import count

from hookline_status.messages import Kind, Message

__all__ = ["MessageQueue"]


class MessageQueue:
    """When it is full, the oldest message of the lowest priority is dropped. A terminal status never is."""

    def __init__(self, capacity: int) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._numbers = count()
        self._waiting: dict[Kind, deque[tuple[int, Message]]] = {kind: deque() for kind in Kind}
        self._size = 0
        # Held only while the queue changes, never during a write or a request.
        self._lock = threading.Lock()

    def put(self, message: Message) -> None:
        """Add a message. Takes about a microsecond."""
        with self._lock:
            self._waiting[message.kind].append((next(self._numbers), message))
            self._size += 1
            if self._size > self._capacity:
                self._make_room()

    def _make_room(self) -> None:
        for kind in (Kind.HEARTBEAT, Kind.REPORT, Kind.EVENT):
            if self._waiting[kind]:
                self._waiting[kind].popleft()
                self._size -= 1
                self.dropped += 1
                return

    def take(self) -> list[tuple[int, Message]]:
        """Remove and return all messages, numbered in the order in which they were added."""
        with self._lock:
            taken, self._waiting = self._waiting, {kind: deque() for kind in Kind}
            self._size = 0
        return sorted((numbered for waiting in taken.values() for numbered in waiting), key=lambda pair: pair[0])

    def put_back(self, taken: Sequence[tuple[int, Message]]) -> None:
        """Put messages from `take` back in front of those added since."""
        with self._lock:
            for numbered in reversed(taken):
                self._waiting[numbered[1].kind].appendleft(numbered)
                self._size += 1
            while self._size > self._capacity:
                before = self._size
                self._make_room()
                if self._size == before:
                    break  # only terminal ones are left

    def __len__(self) -> int:
        return self._size
