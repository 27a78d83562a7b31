"""The tiny modules of `tiny_fit.py`, and trainers that leave their files in the test's own folder."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("tiny_fit.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiny_fit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            # Lightning advises on loaders, loggers and hardware by warnings. torch warns of its own deprecations.
            item.add_marker(pytest.mark.filterwarnings("ignore:::lightning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:::torch"))


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    return _load()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # no settings of this repository, and no runs left in it
    monkeypatch.setenv("HOOKLINE_OPTIONS", "metrics.system_every=0 metrics.report=false")
    before = dict(os.environ)
    yield
    for variable in os.environ.keys() - before.keys():
        del os.environ[variable]  # `seed_everything` leaves PL_GLOBAL_SEED
