"""pytest fixtures: a plugin manager, a recorder of events, and a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pluggy
import pytest

from hookline.plugin_manager.background import freeze
from hookline.plugin_manager.manager import PluginManager

if TYPE_CHECKING:
    from hookline.plugin_manager.manager import PluginManager
    from hookline_hookspecs import TrainerState

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


@pytest.fixture
def hookline_manager() -> Iterator[PluginManager]:
    """A plugin manager of the test's own, which discovers nothing. Background work is done when the test ends."""
    from hookline.plugin_manager.manager import PluginManager

    with PluginManager() as manager:
        yield manager


@pytest.fixture
def hookline_events(hookline_manager: PluginManager) -> Iterator[EventRecorder]:
    """A record of every event that is emitted through `hookline_manager`."""
    from hookline.testing.fixtures import EventRecorder

    with EventRecorder(hookline_manager) as recorder:
        yield recorder


@pytest.fixture
def hookline_state(tmp_path: Path) -> Callable[..., TrainerState]:
    """Builds a state with a run folder of its own: `hookline_state(epoch=3, step=120)`."""
    from hookline_hookspecs import TrainerState

    def build(**fields: Any) -> TrainerState:
        return TrainerState(**{"run_id": "test-run", "run_dir": tmp_path, **fields})

    return build
