"""One component's voice: what it says goes to a delivery, at the training thread's least expense."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hookline_status.messages import Kind, Message

if TYPE_CHECKING:
    from hookline_status.delivery import Delivery

__all__ = ["Reporter"]

RECURRENCE_SECONDS: Final = 1.0
"""The moments of a step are told at most this often each: a fast loop has thousands of them in a second."""


class Reporter:
    """Makes messages of what happens. All methods may be called on the training thread."""

    def __init__(self, delivery: Delivery, component: str) -> None:
        self.delivery = delivery
        self.component = component
        self._told_at: dict[str, float] = {}

    def status(self, metrics: Mapping[str, Any], step: int) -> None:
        """The metrics of a step."""
        self.delivery.put(Message(Kind.REPORT, self.component, time.time(), dict(metrics), step=step))

    def event(self, phase: str, data: Mapping[str, Any], kind: Kind = Kind.EVENT) -> None:
        """A moment of the run."""
        self.delivery.put(Message(kind, self.component, time.time(), dict(data), phase=phase))

    def recurring_event(self, phase: str, data: Mapping[str, Any]) -> None:
        """A moment that comes with every step or batch. It is worth no more than a heartbeat."""
        now = time.monotonic()
        if now >= self._told_at.get(phase, now):
            self._told_at[phase] = now + RECURRENCE_SECONDS
            self.event(phase, data, Kind.HEARTBEAT)
