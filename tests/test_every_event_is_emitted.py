"""Every event has an emitter, in the part that its documentation names, and is tested there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from hookline import PluginManager
from hookline.plugin_manager.events import parse_contract

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src" / "hookline"
EVENTS = PluginManager().events
EMITTERS = {
    "trainer": [CORE / "training", CORE / "session"],
    "rollout worker": [CORE / "rollout"],
    "reward processor": [CORE / "rewards"],
    "core": [CORE],
    **{f"{name} plugin": [ROOT / "plugins" / name / "src"] for name in ("evaluation", "checkpoint", "metrics")},
}


def sources(folders: Iterable[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("*.py")))


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_emitted_by_those_that_its_documentation_names(name: str) -> None:
    emission = re.compile(rf'emit\.{name}\(|_announce\("{name}"|"{name}", ')
    for emitter in parse_contract(EVENTS[name].doc).emitted_by.rstrip(".").split(", "):
        assert emission.search(sources(EMITTERS[emitter])) is not None, f"{name}, by the {emitter}"


def test_every_event_is_tested() -> None:
    folders = [ROOT / "core" / "tests", *(ROOT / "plugins").glob("*/tests")]
    tested = sources(folders)
    assert {name for name in EVENTS if name not in tested} == set()
