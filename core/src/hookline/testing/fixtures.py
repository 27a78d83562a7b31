"""The fixtures that pytest finds by itself. Hookline is imported only by a test that asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hookline.plugins.manager import PluginManager
    from hookline.testing.recorder import EventRecorder
    from hookline_hookspecs import TrainerState


@pytest.fixture
def hookline_manager() -> Iterator[PluginManager]:
    """A plugin manager of the test's own, which discovers nothing. Background work is done when the test ends."""
    from hookline.plugins.manager import PluginManager

    with PluginManager() as manager:
        yield manager


@pytest.fixture
def hookline_events(hookline_manager: PluginManager) -> Iterator[EventRecorder]:
    """A record of every event that is emitted through `hookline_manager`."""
    from hookline.testing.recorder import EventRecorder

    with EventRecorder(hookline_manager) as recorder:
        yield recorder


@pytest.fixture
def hookline_state(tmp_path: Path) -> Callable[..., TrainerState]:
    """Builds a state with a run folder of its own: `hookline_state(epoch=3, step=120)`."""
    from hookline_hookspecs import TrainerState

    def build(**fields: Any) -> TrainerState:
        return TrainerState(**{"run_id": "test-run", "run_dir": tmp_path, **fields})

    return build
