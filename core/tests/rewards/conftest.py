"""What the tests of rewards share: the oracle, both backends, and distributions installed for one test."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hookline.rewards.processor import hedges


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rewards_oracle", Path(__file__).with_name("oracle.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def hedge_phrases() -> list[str]:
    return list(hedges().phrases)


@pytest.fixture(params=["numpy", "mlx"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Whether rewards are computed by MLX; each test that asks runs with and without."""
    if request.param == "mlx":
        pytest.importorskip("mlx.core")
    return bool(request.param == "mlx")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, dict[str, str]], None]]:
    """Installs a distribution for one test: its name, its module's source, and its entry points."""
    site = tmp_path / "site"
    modules: list[str] = []

    def add(name: str, source: str, entry_points: dict[str, str]) -> None:
        module = name.replace("-", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        lines = [f"{plugin} = {target}" for plugin, target in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[hookline]", *lines, ""]), encoding="utf-8")
        modules.append(module)

    monkeypatch.syspath_prepend(str(site))
    yield add
    for module in modules:
        sys.modules.pop(module, None)
