"""The plugin among others, and folders that look like those of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline_evaluation import Evaluation, Options


@pytest.fixture
def evaluation(hookline_manager: PluginManager) -> Callable[..., Evaluation]:
    """Registers the plugin, `evaluation(n_examples=8)`, to evaluate every epoch."""

    def register(**options: Any) -> Evaluation:
        plugin = Evaluation(Options(**{"every": 1, **options}), hookline_manager.emit)
        hookline_manager.register(plugin, "evaluation")
        return plugin

    return register


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The folder of a run without checkpoints."""
    folder = tmp_path / "root" / "run"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"task": null}')
    return folder


@pytest.fixture
def endless(run_dir: Path) -> Path:
    """A checkpoint whose evaluation does not come to an end: reading its weights waits for a writer."""
    folder = run_dir / "checkpoints" / "epoch-000004"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    os.mkfifo(folder / "policy.safetensors")
    return folder
