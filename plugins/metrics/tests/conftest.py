import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline_metrics import Metrics, Options
from hookline_metrics.recording import LostReportsError

Register = Callable[..., PluginManager]
Read = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def with_metrics(hookline_manager: PluginManager) -> Iterator[Register]:
    """Registers the plugin with options: quiet, unless a test wants otherwise. Runs that no test ends are ended."""
    made: list[Metrics] = []

    def register(**options: Any) -> PluginManager:
        quiet = {"progress": "off", "report": False, "system_every": 0.0}
        made.append(Metrics(Options(**{**quiet, **options}), hookline_manager.emit))
        hookline_manager.register(made[-1], "metrics")
        return hookline_manager

    yield register
    for plugin in made:
        with suppress(LostReportsError):
            plugin._end()


@pytest.fixture
def manager(with_metrics: Register) -> PluginManager:
    return with_metrics()


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Queries the database of the test's run; one that has not been made yet gives no rows."""

    def query(statement: str, folder: Path = tmp_path) -> list[tuple[Any, ...]]:
        if not (folder / "stats.sqlite").exists():
            return []
        with closing(sqlite3.connect(folder / "stats.sqlite")) as connection:
            has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'metrics'").fetchone()
            return connection.execute(statement).fetchall() if has_table else []

    return query


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Waits until something is true, as long as it takes; the test's own timeout is the limit."""

    def wait(condition: Callable[[], object]) -> None:
        while not condition():
            time.sleep(0.02)

    return wait


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs code in a process of its own, and returns what it printed."""

    def run(code: str, *arguments: str, **environ: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environ},
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run
