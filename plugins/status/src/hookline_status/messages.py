"""What is said to an endpoint, and how it reads as JSON.

    a status  {"component": "hookline", "step": 40, "timestamp": "2026-03-01T12:00:00.000+00:00", "metrics": {...}}
    an event  {"component": "hookline", "phase": "pre_validation", "timestamp": "...", "data": {...}}

Messages are made on the training thread, which does no more than note what there is; they become JSON elsewhere. Values
that must not be shown are replaced there. A number that JSON lacks, such as a NaN, is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from hookline_hookspecs.redaction import REDACTED, redact, redact_text
from hookline_hookspecs.secret_names import is_secret_name

__all__ = ["Kind", "Message", "encode"]

LONGEST_TEXT: Final = 2_000
LONGEST_BODY: Final = 16_000
DEEPEST: Final = 4


class Kind(IntEnum):
    """What a message is worth when there is no room for all: the least goes first, the last one never."""

    HEARTBEAT = 0
    REPORT = 1
    EVENT = 2
    TERMINAL = 3


class Message(NamedTuple):
    """A status, which has a step, or an event, which has a phase."""

    kind: Kind
    component: str
    time: float
    data: Mapping[str, Any]
    phase: str | None = None
    step: int | None = None


def encode(message: Message) -> str:
    """The message as JSON. One that is too long, or has something in it that cannot be read, loses its data."""
    try:
        body = _dump(message, _plain(message.data))
    except Exception as error:  # of an object that is not ours, or that the training thread changes meanwhile
        return _dump(message, {"left_out": f"it cannot be read: {type(error).__name__}"})
    return body if len(body) <= LONGEST_BODY else _dump(message, {"left_out": f"{len(body)} characters, too many"})


def _dump(message: Message, data: Any) -> str:
    timestamp = datetime.fromtimestamp(message.time, UTC).isoformat(timespec="milliseconds")
    component = _shortened(message.component)
    if message.phase is None:
        body = {"component": component, "step": message.step, "timestamp": timestamp, "metrics": data}
    else:
        body = {"component": component, "phase": message.phase, "timestamp": timestamp, "data": data}
    return json.dumps(redact(body, by_names=False), allow_nan=False)


def _plain(value: Any, is_secret: bool = False, depth: int = 0) -> Any:
    """The value as JSON can hold it. What has no such form is told by its type."""
    if type(value) is float:  # nearly always, and asking an abstract class takes ten times as long
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A number is no secret whatever its name: `train/tokens` is how many there were.
        return REDACTED if value and is_secret else _shortened(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {
            _shortened(str(key)): _plain(inner, is_secret or is_secret_name(str(key)), depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)) and depth < DEEPEST:
        return [_plain(inner, is_secret, depth + 1) for inner in value]
    if callable(getattr(value, "item", None)):  # an array or tensor of one element
        try:
            return _plain(value.item(), is_secret, DEEPEST)
        except (TypeError, ValueError, RuntimeError):
            pass
    return f"<{type(value).__name__}>"


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{redact_text(text)[:LONGEST_TEXT]}…"  # redacted before it is cut, which might leave half of a secret
