"""The small models, and each of the five algorithms."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def models() -> ModuleType:
    """The module `small_models` beside this one, which child processes import as well."""
    spec = importlib.util.spec_from_file_location("small_models", Path(__file__).parent / "small_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["PPO", "A2C", "DQN", "SAC", "TD3"])
def algorithm(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
