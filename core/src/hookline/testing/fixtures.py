"""pytest fixtures: a plugin manager, a recorder of events, and a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pluggy
import pytest

from hookline.plugin_manager.background import freeze
from hookline.plugin_manager.manager import PluginManager
from hookline_hookspecs import TrainerState

__all__ = ["EventRecorder", "RecordedEvent"]


@dataclass(frozen=True)
class RecordedEvent:
    """One emission. The state in its arguments is a frozen view, taken before plugins were called."""

    name: str
    arguments: Mapping[str, Any]
    plugins: tuple[str, ...]
    """The plugins that implement the event, in call order."""


class EventRecorder:
    """Records all events of a manager: `with EventRecorder(manager) as recorder: ...`."""

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
        """The names of the emitted events, in order."""
        return [event.name for event in self.events]

    def of(self, name: str) -> list[RecordedEvent]:
        """The emissions of one event."""
        return [event for event in self.events if event.name == name]

    def clear(self) -> None:
        self.events.clear()


@pytest.fixture
def hookline_manager() -> Iterator[PluginManager]:
    """A new plugin manager without installed plugins. Background work is finished at the end of the test."""
    with PluginManager() as manager:
        yield manager


@pytest.fixture
def hookline_events(hookline_manager: PluginManager) -> Iterator[EventRecorder]:
    """A record of every event that is emitted through `hookline_manager`."""
    with EventRecorder(hookline_manager) as recorder:
        yield recorder


@pytest.fixture
def hookline_state(tmp_path: Path) -> Callable[..., TrainerState]:
    """Builds a state with a temporary run folder: `hookline_state(epoch=3, step=120)`."""

    def build(**fields: Any) -> TrainerState:
        return TrainerState(**{"run_id": "test-run", "run_dir": tmp_path, **fields})

    return build
