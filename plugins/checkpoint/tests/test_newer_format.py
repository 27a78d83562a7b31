"""Checkpoints with a newer format: a run stops with an error and changes nothing."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline_checkpoint import Checkpoint, NewerFormatError
from hookline_hookspecs import TrainerState

Register = Callable[..., Checkpoint]
Run = Callable[..., TrainerState]

NEEDED = (
    r"epoch-0000{epoch}: it has format version 4, and this hookline-checkpoint reads up to version 3\. "
    r"Nothing was changed\. Upgrade with pip install -U hookline-checkpoint"
)


def make_newer(path: Path, version: Any = 4) -> None:
    manifest = json.loads((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": version}))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("epoch", [10, 20])
def test_a_run_neither_begins_nor_goes_on_beside_a_checkpoint_of_a_later_release(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, folder: Path, resume: bool, epoch: int
) -> None:
    make_newer(folder / f"epoch-0000{epoch}")
    (folder / ".staging-epoch-000030").mkdir()
    (folder / ".staging-epoch-000030" / "policy.safetensors").touch()
    before = contents(folder)
    checkpoint(keep_last=1, every=1)
    with pytest.raises(NewerFormatError, match=NEEDED.format(epoch=epoch)):
        hookline_manager.emit.on_new_training_run(state=run(resume=resume))
    assert contents(folder) == before


def test_nor_is_it_passed_over_for_an_older_one_by_a_reader_without_a_run(
    checkpoint: Register, hookline_manager: PluginManager, run: Run, folder: Path
) -> None:
    make_newer(folder / "epoch-000020")
    checkpoint()
    with pytest.raises(NewerFormatError, match="format version 4"):
        hookline_manager.emit.restore_training_run(state=run(resume=True))
