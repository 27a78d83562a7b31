"""The messages to an endpoint, their JSON, and the `Reporter` that creates them.

    a status  {"component": "hookline", "step": 40, "timestamp": "2026-03-01T12:00:00.000+00:00", "metrics": {...}}
    an event  {"component": "hookline", "phase": "pre_validation", "timestamp": "...", "data": {...}}

The training thread only creates the `Message`. Another thread encodes it as JSON and redacts secrets. NaN and
infinities, which JSON does not have, become null.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hookline_hookspecs.redaction import REDACTED, redact, redact_text
from hookline_hookspecs.secret_names import is_secret_name

if TYPE_CHECKING:
    from hookline_status.delivery import Delivery

__all__ = ["Kind", "Message", "Reporter", "encode"]

MAX_TEXT: Final = 2_000
MAX_BODY: Final = 16_000
MAX_DEPTH: Final = 4

RECURRENCE_SECONDS: Final = 1.0
"""Seconds between two messages of one recurring event. A fast loop has thousands of steps in a second."""


class Kind(IntEnum):
    """The priority of a message. When the queue is full, the lowest is dropped first. TERMINAL is never dropped."""

    HEARTBEAT = 0
    REPORT = 1
    EVENT = 2
    TERMINAL = 3


class Message(NamedTuple):
    """A status, which has a `step`, or an event, which has a `phase`."""

    kind: Kind
    component: str
    time: float
    data: Mapping[str, Any]
    phase: str | None = None
    step: int | None = None


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


def encode(message: Message) -> str:
    """The message as JSON. Its data is left out if it is too long or cannot be encoded."""
    try:
        body = _dump(message, _plain(message.data))
    except Exception as error:  # from an object of the user's, or one that the training thread changes meanwhile
        return _dump(message, {"left_out": f"it cannot be encoded: {type(error).__name__}"})
    return body if len(body) <= MAX_BODY else _dump(message, {"left_out": f"it is too long: {len(body)} characters"})


def _dump(message: Message, data: Any) -> str:
    timestamp = datetime.fromtimestamp(message.time, UTC).isoformat(timespec="milliseconds")
    component = _shortened(message.component)
    if message.phase is None:
        body = {"component": component, "step": message.step, "timestamp": timestamp, "metrics": data}
    else:
        body = {"component": component, "phase": message.phase, "timestamp": timestamp, "data": data}
    return json.dumps(redact(body, by_names=False), allow_nan=False)


def _plain(value: Any, is_secret: bool = False, depth: int = 0) -> Any:
    """The value as JSON-compatible data. An object with no JSON form becomes `<its type>`."""
    if type(value) is float:  # the common case; `isinstance` with an abstract class takes ten times as long
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # Only text can be a secret. A number is not, whatever its name: `train/tokens` is a count.
        return REDACTED if value and is_secret else _shortened(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        return {
            _shortened(str(key)): _plain(inner, is_secret or is_secret_name(str(key)), depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        return [_plain(inner, is_secret, depth + 1) for inner in value]
    if callable(getattr(value, "item", None)):  # an array or tensor of one element
        try:
            return _plain(value.item(), is_secret, MAX_DEPTH)
        except (TypeError, ValueError, RuntimeError):
            pass
    return f"<{type(value).__name__}>"


def _shortened(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{redact_text(text)[:MAX_TEXT]}…"  # redacted first, since a cut could leave half of a secret
