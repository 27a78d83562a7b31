"""A run with a small policy and optimizer, which need no framework."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline.plugin_manager import PluginManager
from hookline_checkpoint import Checkpoint, Options
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.snapshot import SnapshotBuffers
from hookline_checkpoint.store import Saved, write_checkpoint
from hookline_hookspecs import TrainerState

Write = Callable[..., Saved]


class Linear:
    """The smallest policy that can be saved."""

    def __init__(self, fill: float = 0.0, width: int = 4) -> None:
        self.weight = numpy.full((width, 2), fill, dtype=numpy.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"layer.weight": self.weight}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if saved["layer.weight"].shape != self.weight.shape:
            raise ValueError(f"layer.weight is {saved['layer.weight'].shape}, not {self.weight.shape}")
        self.weight = saved["layer.weight"]


class Momentum:
    """An optimizer whose state has the shape of torch's: tuples, whole numbers as keys, None."""

    def __init__(self, fill: float = 0.0) -> None:
        self.state = {
            "state": {0: {"step": numpy.array(fill, dtype=numpy.float32), "momentum": numpy.full(3, fill)}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "foreach": None, "params": [0]}],
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.state = saved


@pytest.fixture
def run(hookline_state: Callable[..., TrainerState]) -> Callable[..., TrainerState]:
    """A run whose weights tell its epoch: `run(epoch=10)`."""

    def build(**fields: Any) -> TrainerState:
        fill = float(fields.get("epoch", 0))
        return hookline_state(**{"policy": Linear(fill), "optimizer": Momentum(fill), **fields})

    return build


@pytest.fixture
def checkpoint(hookline_manager: PluginManager) -> Callable[..., Checkpoint]:
    """Registers the plugin, `checkpoint(keep_last=2)`, to save every epoch. A second takes the place of the first."""

    def register(**options: Any) -> Checkpoint:
        plugin = Checkpoint(Options(**{"every": 1, **options}), hookline_manager.emit)
        if hookline_manager.has_plugin("checkpoint"):
            hookline_manager.replace("checkpoint", plugin)
        else:
            hookline_manager.register(plugin, "checkpoint")
        return plugin

    return register


@pytest.fixture
def save(hookline_manager: PluginManager) -> Callable[[TrainerState], None]:
    """Lets an epoch end, waits until what is saved of it is on disk, and takes the step at which that is noticed."""

    def save(state: TrainerState) -> None:
        hookline_manager.emit.on_epoch_end(state=state)
        plugin = hookline_manager.get_plugin("checkpoint")
        assert plugin is not None
        while plugin.checkpoint_manager.is_writing:
            time.sleep(0.001)
        hookline_manager.emit.post_training_step(state=state, report_data={})

    return save


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a checkpoint whose arrays tell its epoch, without a run: `write(30)`."""

    def write(epoch: int, size: int = 100, **fields: Any) -> Saved:
        array = numpy.full(size, epoch, dtype=numpy.float32)
        contents = Contents(
            epoch=epoch,
            step=epoch * 8,
            policy={"w": array},
            optimizer={"m": [array]},
            plugins={"a": {"n": 1}},
            **fields,
        )
        return write_checkpoint(tmp_path / "checkpoints", SnapshotBuffers().take(contents))

    return write


@pytest.fixture
def folder(tmp_path: Path, write: Write) -> Path:
    """A folder with valid checkpoints of the epochs 10 and 20."""
    for epoch in (10, 20):
        write(epoch)
    return tmp_path / "checkpoints"


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk on which every fsync waits until the event is set."""
    may_go_on = threading.Event()
    fsync = os.fsync

    def wait(descriptor: int) -> None:
        assert may_go_on.wait(500)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", wait)
    return may_go_on
