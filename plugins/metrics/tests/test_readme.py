"""What the README shows works as it stands."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest

from hookline.plugin_manager import PluginManager
from hookline_hookspecs import TrainerState
from hookline_metrics import Options

PATH = Path(__file__).parents[1] / "README.md"

# Tests of the wheels run from a copy, which has no README beside it.
pytestmark = pytest.mark.skipif(not PATH.exists(), reason="the README is not here")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PATH.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_query_works(manager: PluginManager, hookline_state: Callable[..., TrainerState], tmp_path: Path) -> None:
    state = hookline_state(step=3)
    manager.emit.on_new_training_run(state=state)
    manager.emit.log_metrics(report_data={"train/loss": 0.5}, step=3)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    with closing(sqlite3.connect(tmp_path / "stats.sqlite")) as connection:
        assert connection.execute(block("sql")).fetchall() == [(3, 0.5)]


def test_every_option_is_in_its_table() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PATH.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(Options)} <= named
