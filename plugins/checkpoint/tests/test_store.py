"""Real files, damaged in the ways that disks, people and full file systems damage them."""

import errno
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline_checkpoint import CheckpointError, InvalidCheckpointError
from hookline_checkpoint.store import Contents, find_checkpoints, newest_valid, prune, read_checkpoint, write_checkpoint

FILES = ["policy.safetensors", "optimizer.safetensors", "state.json"]


def contents(epoch: int, size: int = 100) -> Contents:
    array = numpy.full(size, epoch, dtype=numpy.float32)
    return Contents(epoch=epoch, step=epoch * 8, policy={"w": array}, optimizer={"m": [array]}, plugins={"a": {"n": 1}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with valid checkpoints of the epochs 10 and 20."""
    for epoch in (10, 20):
        write_checkpoint(tmp_path / "checkpoints", contents(epoch))
    return tmp_path / "checkpoints"


def newest_epoch(folder: Path) -> int | None:
    found, _ = newest_valid(folder)
    return None if found is None else found[1].epoch


def test_a_checkpoint_holds_what_was_written(folder: Path) -> None:
    back = read_checkpoint(folder / "epoch-000020")
    assert (back.epoch, back.step, back.plugins) == (20, 160, {"a": {"n": 1}})
    assert back.policy["w"].tolist() == [20.0] * 100
    assert back.optimizer["m"][0].dtype == numpy.float32


def test_a_checkpoint_has_the_four_files_and_nothing_else(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"epoch-000010", "epoch-000020"}
    assert {path.name for path in (folder / "epoch-000020").iterdir()} == {*FILES, "manifest.json"}


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_makes_a_checkpoint_invalid(folder: Path, name: str) -> None:
    file = folder / "epoch-000020" / name
    file.write_bytes(file.read_bytes()[:-1])
    found, skipped = newest_valid(folder)
    assert found is not None
    assert found[1].epoch == 10
    assert str(skipped[0]).startswith(f"{folder / 'epoch-000020'}: {name} has ")


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_makes_a_checkpoint_invalid(folder: Path, name: str) -> None:
    file = folder / "epoch-000020" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(InvalidCheckpointError, match=f"{name} is damaged"):
        read_checkpoint(file.parent)
    assert newest_epoch(folder) == 10


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_missing_file_makes_a_checkpoint_invalid(folder: Path, name: str) -> None:
    (folder / "epoch-000020" / name).unlink()
    with pytest.raises(InvalidCheckpointError, match=f"{name} is missing"):
        read_checkpoint(folder / "epoch-000020")
    assert newest_epoch(folder) == 10


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (b"{", "manifest.json is not JSON"),
        (b"\xff", "manifest.json is not JSON"),
        (b"[]", "is not the manifest of a checkpoint"),
        (b'{"format": "hookline-checkpoint", "version": 2}', "version 2, this reader knows 1"),
        (b'{"format": "hookline-checkpoint", "version": 1}', "does not give the size and hash of policy.safetensors"),
    ],
)
def test_a_manifest_that_says_something_else_makes_a_checkpoint_invalid(
    folder: Path, manifest: bytes, problem: str
) -> None:
    (folder / "epoch-000020" / "manifest.json").write_bytes(manifest)
    with pytest.raises(InvalidCheckpointError, match=problem):
        read_checkpoint(folder / "epoch-000020")


@pytest.mark.parametrize("state", [{}, [], {"run_id": "", "counters": {"epoch": "x"}}])
def test_files_that_agree_with_their_manifest_but_make_no_sense_are_invalid(folder: Path, state: Any) -> None:
    path = folder / "epoch-000020"
    data = json.dumps(state).encode()
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"]["state.json"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "state.json").write_bytes(data)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidCheckpointError, match=r"state\.json is not the state of a checkpoint"):
        read_checkpoint(path)


def test_a_leftover_staging_folder_is_not_read_and_goes_with_the_next_save(folder: Path) -> None:
    leftover = folder / ".staging-epoch-000030"
    (folder / "epoch-000020").rename(leftover)
    assert newest_epoch(folder) == 10
    write_checkpoint(folder, contents(30))
    assert not leftover.exists()
    assert newest_epoch(folder) == 30


def test_a_half_written_staging_folder_of_the_same_epoch_is_no_obstacle(folder: Path) -> None:
    (folder / ".staging-epoch-000030").mkdir()
    (folder / ".staging-epoch-000030" / "policy.safetensors").write_bytes(b"half")
    write_checkpoint(folder, contents(30))
    assert newest_epoch(folder) == 30


def test_only_the_newest_are_kept(folder: Path) -> None:
    path, _ = write_checkpoint(folder, contents(30))
    prune(path, keep_last=2)
    assert [path.name for path in find_checkpoints(folder)] == ["epoch-000030", "epoch-000020"]
    assert len(list(folder.iterdir())) == 2


def test_a_checkpoint_just_saved_is_kept_though_damaged_ones_are_newer(folder: Path) -> None:
    (folder / "epoch-000020" / "manifest.json").unlink()
    path, _ = write_checkpoint(folder, contents(15))
    prune(path, keep_last=1)
    assert newest_epoch(folder) == 15


def test_checkpoints_are_ordered_by_their_epoch_also_beyond_six_digits(folder: Path) -> None:
    write_checkpoint(folder, contents(1_000_000))
    write_checkpoint(folder, contents(999_999))
    assert find_checkpoints(folder)[0].name == "epoch-1000000"


def test_a_damaged_checkpoint_is_replaced_when_its_epoch_comes_again(folder: Path) -> None:
    (folder / "epoch-000020" / "manifest.json").unlink()
    write_checkpoint(folder, contents(20))
    assert newest_epoch(folder) == 20
    assert {path.name for path in folder.iterdir()} == {"epoch-000010", "epoch-000020"}


def test_a_checkpoint_that_was_about_to_be_replaced_is_still_found(folder: Path) -> None:
    (folder / "epoch-000020").rename(folder / "epoch-000020.replaced")
    assert newest_epoch(folder) == 20
    write_checkpoint(folder, contents(20))
    assert not (folder / "epoch-000020.replaced").exists()


class Death(BaseException):
    """The end of the process."""


def die_after(operations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so many operations on the file system happen, and from then on none."""
    left = operations

    def mortal(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Death
            left -= 1
            return operation(*args, **kwargs)

        return run

    for owner, name in [(os, "fsync"), (shutil, "rmtree"), (Path, "mkdir"), (Path, "rename")]:
        monkeypatch.setattr(owner, name, mortal(getattr(owner, name)))


@pytest.mark.parametrize("epoch", [20, 30])
def test_a_death_between_any_two_operations_of_a_save_leaves_a_valid_checkpoint(
    folder: Path, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder / "epoch-000010")  # the one at stake is the only one
    for operations in itertools.count():
        try:
            with monkeypatch.context() as patch:
                die_after(operations, patch)
                path, _ = write_checkpoint(folder, contents(epoch))
                prune(path, keep_last=1)
            break
        except Death:
            assert newest_epoch(folder) in (20, epoch)
    assert operations > 10
    assert [path.name for path in folder.iterdir()] == [f"epoch-0000{epoch}"]


@pytest.mark.parametrize("failing_call", range(8))
@pytest.mark.parametrize("epoch", [20, 30])
def test_a_disk_that_fails_at_any_write_leaves_a_valid_checkpoint(
    folder: Path, epoch: int, failing_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > failing_call:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    if failing_call < 7:  # four files, the staging folder, and two folders above
        with pytest.raises(CheckpointError, match=f"epoch-0000{epoch} cannot be saved: .*Earlier checkpoints are unto"):
            write_checkpoint(folder, contents(epoch))
    else:
        write_checkpoint(folder, contents(epoch))
    assert newest_epoch(folder) in (20, epoch)
    assert not list(folder.glob(".staging-*"))


def test_a_file_system_without_room_leaves_the_previous_checkpoint(folder: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot be saved: .*File too large"):
            write_checkpoint(folder, contents(30, size=1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest_epoch(folder) == 20
    assert not list(folder.glob(".staging-*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_leaves_the_previous_checkpoint(folder: Path) -> None:
    folder.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="cannot be saved: .*Permission denied"):
            write_checkpoint(folder, contents(30))
    finally:
        folder.chmod(0o700)
    assert newest_epoch(folder) == 20


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file in the way")
    with pytest.raises(CheckpointError, match="epoch-000001 cannot be saved: .*File exists"):
        write_checkpoint(tmp_path / "checkpoints", contents(1))
