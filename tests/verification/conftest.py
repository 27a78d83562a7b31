"""The oracles, loaded by path: that of the verifiers beside this file, that of the texts from the tests of rewards."""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def text_oracle() -> ModuleType:
    return load("verifiers_text_oracle", ROOT / "core/tests/rewards/oracle.py")


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    return load("verifiers_oracle", Path(__file__).with_name("oracle.py"))


@pytest.fixture(scope="session")
def word_lists(text_oracle: ModuleType) -> dict[str, list[str]]:
    lists = {}
    for name in ("severe", "rude", "claims", "support"):
        text = resources.files("hookline_verifiers").joinpath(f"data/{name}.txt").read_text(encoding="utf-8")
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        lists[name] = list(dict.fromkeys(text_oracle.canonical(line) for line in lines if line))
    return lists


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("HOOKLINE_DISABLE", "HOOKLINE_ALLOW", "HOOKLINE_OPTIONS", "HOOKLINE_REQUIRED", "HOOKLINE_STRICT"):
        monkeypatch.delenv(variable, raising=False)
