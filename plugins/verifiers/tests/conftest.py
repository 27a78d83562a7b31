"""Fixtures of the verifiers' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("HOOKLINE_DISABLE", "HOOKLINE_ALLOW", "HOOKLINE_OPTIONS", "HOOKLINE_REQUIRED", "HOOKLINE_STRICT"):
        monkeypatch.delenv(variable, raising=False)
