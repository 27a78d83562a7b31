"""Folders for tiny trainers, and what they leave in them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tiny_trainers, which child processes run as a script

from tiny_trainers import Recorded


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose settings are all defaults."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_OPTIONS", "metrics.progress=off metrics.report=false checkpoint.every=1")
    return tmp_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # transformers, TRL and torch warn of each other's calls.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture
def recorded(folder: Path) -> Recorded:
    return Recorded(folder / "run")
