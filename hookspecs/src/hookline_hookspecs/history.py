"""What is no longer there: names, events and arguments of earlier versions, and what to use instead.

When each event and argument was added, and until when it stays, is in the docstring of its hookspec (`Added`, `Until`).
What is taken away moves here, so that a plugin for an earlier version is told what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["REMOVED", "Removed"]


class Removed(NamedTuple):
    """Something that was there from one version until another, the first without it."""

    added: str
    until: str
    instead: str


REMOVED: Final[Mapping[str, Removed]] = {
    "Interval": Removed("0.1", "0.2", "Watch"),
}
"""By the name in `hookline_hookspecs`, the name of the event, or `event.argument`."""
