"""Arrays that plugins save, which lie beside the policy's."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file

from hookline.plugin_manager import PluginManager
from hookline_checkpoint import CheckpointError, InvalidCheckpointError
from hookline_checkpoint.reading import read_checkpoint
from hookline_hookspecs import TrainerState, hookimpl

Run = Callable[..., TrainerState]
Register = Callable[..., Any]


class Buffer:
    """Has numbers in an array, and more of them than it needs copies of."""

    def __init__(self, **more: Any) -> None:
        self.values = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
        self.more = more
        self.loaded: Mapping[str, Any] | None = None

    @hookimpl
    def save_plugin_state(self) -> dict[str, Any]:
        return {"values": self.values, "position": 2, "best": float("nan"), "shape": (2, 3), **self.more}

    @hookimpl
    def load_plugin_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        self.loaded = saved["buffer"]


@pytest.fixture
def saved(checkpoint: Register, hookline_manager: PluginManager, run: Run, tmp_path: Path) -> Path:
    """A checkpoint of a run with such a plugin, whose array has changed since."""
    checkpoint()
    buffer = Buffer()
    hookline_manager.register(buffer, "buffer")
    hookline_manager.emit.on_epoch_end(state=run(epoch=10))
    buffer.values[:] = -1
    hookline_manager.emit.on_training_failed(state=run(epoch=10), error=ValueError())
    return tmp_path / "checkpoints" / "epoch-000010"


def test_arrays_of_a_plugin_come_back_as_they_were_when_they_were_saved(saved: Path) -> None:
    back = read_checkpoint(saved).contents.plugins["buffer"]
    assert back["values"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert back["values"].dtype == numpy.float32
    back["values"][:] = 0  # a plugin may go on with it in place
    assert (back["position"], back["shape"]) == (2, (2, 3))
    assert numpy.isnan(back["best"])


def test_they_lie_in_a_file_that_any_reader_of_safetensors_reads(saved: Path) -> None:
    assert list(load_file(saved / "plugins.safetensors")) == ["buffer.values"]
    assert json.loads((saved / "manifest.json").read_text())["version"] == 2
    assert json.loads((saved / "state.json").read_text())["plugins_with_arrays"] == ["buffer"]


def test_a_run_without_them_has_no_such_file(checkpoint: Register, hookline_manager: PluginManager, run: Run) -> None:
    checkpoint()
    state = run(epoch=10)
    hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_failed(state=state, error=ValueError())
    assert state.latest_checkpoint_path is not None
    assert not (state.latest_checkpoint_path / "plugins.safetensors").exists()
    assert json.loads((state.latest_checkpoint_path / "manifest.json").read_text())["version"] == 1


def test_a_resumed_run_gets_them_back(
    saved: Path, checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    buffer = Buffer()
    hookline_manager.unregister(name="buffer")
    hookline_manager.register(buffer, "buffer")
    hookline_manager.emit.restore_training_run(state=run(resume=True))
    assert buffer.loaded is not None
    assert buffer.loaded["values"].sum() == 15


def test_a_checkpoint_of_the_first_format_is_read(saved: Path) -> None:
    (saved / "plugins.safetensors").unlink()
    state = json.loads((saved / "state.json").read_text())
    del state["plugins_with_arrays"]
    state["plugins"] = {"counter": {"count": 3}}
    rewrite(saved, {"state.json": json.dumps(state).encode()}, version=1)
    assert read_checkpoint(saved).contents.plugins == {"counter": {"count": 3}}


def test_a_damaged_or_missing_file_of_arrays_makes_a_checkpoint_invalid(saved: Path) -> None:
    file = saved / "plugins.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InvalidCheckpointError, match=r"plugins\.safetensors is damaged"):
        read_checkpoint(saved)
    file.unlink()
    with pytest.raises(InvalidCheckpointError, match=r"plugins\.safetensors is missing"):
        read_checkpoint(saved)


def test_what_lies_beside_an_array_and_cannot_be_held_is_named(
    checkpoint: Register, hookline_manager: PluginManager, run: Run
) -> None:
    checkpoint()
    hookline_manager.register(Buffer(lock=object()), "buffer")
    with pytest.raises(CheckpointError, match=r"save_plugin_state\['buffer'\]\['lock'\] is a object, which"):
        hookline_manager.emit.on_epoch_end(state=run(epoch=10))


def rewrite(checkpoint: Path, files: Mapping[str, bytes], *, version: int) -> None:
    """Replace files of a checkpoint, and its manifest with them."""
    from hashlib import sha256

    for name, data in files.items():
        (checkpoint / name).write_bytes(data)
    contents = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != "manifest.json"}
    entries = {name: {"size": len(data), "sha256": sha256(data).hexdigest()} for name, data in contents.items()}
    manifest = {"format": "hookline-checkpoint", "version": version, "files": entries}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
