"""Keeps every event that a manager emits, with its arguments as they were then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pluggy

from hookline.plugins.background import freeze
from hookline.plugins.manager import PluginManager

__all__ = ["EventRecorder", "RecordedEvent"]


@dataclass(frozen=True)
class RecordedEvent:
    """One emission. The state among its arguments is a frozen view, taken before any plugin was called."""

    name: str
    arguments: Mapping[str, Any]
    plugins: tuple[str, ...]
    """The plugins that implement the event, in call order."""


class EventRecorder:
    """Records while it is open: `with EventRecorder(manager) as recorder: ...`."""

    def __init__(self, manager: PluginManager) -> None:
        self.events: list[RecordedEvent] = []
        self._manager = manager

    def __enter__(self) -> EventRecorder:
        self._stop = self._manager.add_hookcall_monitoring(self._before, lambda *_: None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()

    def _before(self, name: str, hookimpls: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any]) -> None:
        plugins = tuple(hookimpl.plugin_name for hookimpl in reversed(hookimpls))
        self.events.append(RecordedEvent(name, freeze(arguments), plugins))

    def names(self) -> list[str]:
        """The events in the order of their emission."""
        return [event.name for event in self.events]

    def of(self, name: str) -> list[RecordedEvent]:
        """The emissions of one event."""
        return [event for event in self.events if event.name == name]

    def clear(self) -> None:
        self.events.clear()
