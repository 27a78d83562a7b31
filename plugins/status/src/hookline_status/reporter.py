"""Creates the messages of one component and puts them into a delivery."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hookline_status.messages import Kind, Message

if TYPE_CHECKING:
    from hookline_status.delivery import Delivery

__all__ = ["Reporter"]

RECURRENCE_SECONDS: Final = 1.0
"""Seconds between two messages of one recurring event. A fast loop has thousands of steps in a second."""


class Reporter:
    """Creates messages. All methods are cheap enough for the training thread."""

    def __init__(self, delivery: Delivery, component: str) -> None:
        self.delivery = delivery
        self.component = component
        self._next_at: dict[str, float] = {}

    def status(self, metrics: Mapping[str, Any], step: int) -> None:
        """Send the metrics of a step."""
        self.delivery.put(Message(Kind.REPORT, self.component, time.time(), dict(metrics), step=step))

    def event(self, phase: str, data: Mapping[str, Any], kind: Kind = Kind.EVENT) -> None:
        """Send an event of the run."""
        self.delivery.put(Message(kind, self.component, time.time(), dict(data), phase=phase))

    def recurring_event(self, phase: str, data: Mapping[str, Any]) -> None:
        """Send an event of every step or batch, at most once a second, with the priority of a heartbeat."""
        now = time.monotonic()
        if now >= self._next_at.get(phase, now):
            self._next_at[phase] = now + RECURRENCE_SECONDS
            self.event(phase, data, Kind.HEARTBEAT)
