"""A disk that fails at every single operation in turn, a full one, and one that may not be written to."""

import errno
import itertools
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline_checkpoint import CheckpointError
from hookline_checkpoint.reading import newest_valid
from hookline_checkpoint.retention import Keep, Retention

Write = Callable[..., Any]

CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir", "scandir")
"""All that a save asks of the operating system."""


def newest_epoch(folder: Path) -> int | None:
    found, _ = newest_valid(folder)
    if found is None:
        return None
    epoch = found.contents.epoch
    assert (found.contents.policy["w"] == epoch).all()
    assert (found.contents.optimizer["m"][0] == epoch).all()
    return epoch


class Fault(BaseException):
    """The end of the process."""


def fail_from(call: int, error: BaseException, patch: pytest.MonkeyPatch, *, once: bool) -> Callable[[], int]:
    """Let the call with this number fail, and if not `once` all that come after it; returns a count of the calls."""
    made, own_thread = 0, threading.get_ident()

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            if threading.get_ident() != own_thread:  # a thread that an earlier test has left
                return function(*args, **kwargs)
            made += 1
            if made - 1 == call or (made > call and not once):
                raise error
            return function(*args, **kwargs)

        return run

    for name in CALLS:
        patch.setattr(os, name, failing(getattr(os, name)))
    return lambda: made


@pytest.mark.parametrize("epoch", [20, 30])
def test_a_death_between_any_two_operations_of_a_save_leaves_a_valid_checkpoint(
    folder: Path, epoch: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder / "epoch-000010")  # the one at stake is the only one
    for call in itertools.count():
        try:
            with monkeypatch.context() as patch:
                fail_from(call, Fault(), patch, once=False)
                saved = write(epoch)
                Retention(Keep(last=1)).prune(saved.path, {})
            break
        except Fault:
            assert newest_epoch(folder) in (20, epoch)
    assert call > 25
    assert [path.name for path in folder.iterdir()] == [f"epoch-0000{epoch}"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("epoch", [20, 30])
def test_a_disk_that_fails_at_any_operation_is_a_clear_error_and_leaves_a_valid_checkpoint(
    folder: Path, epoch: int, number: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = folder.with_name("spare")
    shutil.copytree(folder, spare)
    failures = 0
    for call in itertools.count():
        shutil.rmtree(folder)
        shutil.copytree(spare, folder)
        with monkeypatch.context() as patch:
            calls = fail_from(call, OSError(number, os.strerror(number)), patch, once=True)
            try:
                write(epoch)
            except CheckpointError as error:
                failures += 1
                assert f"epoch-0000{epoch} cannot be saved: " in str(error)
                assert os.strerror(number) in str(error)
                assert "Earlier checkpoints are not changed. Free disk space" in str(error)
            made = calls()
        assert newest_epoch(folder) in (20, epoch)
        if made <= call:
            break
    assert failures > 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte, mounted where checkpoints go; only root can have one."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_leaves_the_previous_checkpoint(small_disk: Path, write: Write) -> None:
    write(10, size=50_000)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="epoch-000020 cannot be saved: .*No space left on device"):
            write(20, size=200_000)
        assert newest_epoch(small_disk) == 10
        assert [path.name for path in small_disk.iterdir()] == ["epoch-000010"]
    write(20, size=50_000)
    assert newest_epoch(small_disk) == 20


def test_a_quota_is_a_clear_error_and_leaves_the_previous_checkpoint(folder: Path, write: Write) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match="cannot be saved: .*File too large"):
            write(30, size=1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest_epoch(folder) == 20
    assert not list(folder.glob(".staging-*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_leaves_the_previous_checkpoint(folder: Path, write: Write) -> None:
    folder.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="cannot be saved: .*Permission denied"):
            write(30)
    finally:
        folder.chmod(0o700)
    assert newest_epoch(folder) == 20


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path, write: Write) -> None:
    (tmp_path / "checkpoints").write_text("a file in the way")
    with pytest.raises(CheckpointError, match="epoch-000001 cannot be saved: .*File exists"):
        write(1)


def test_what_cannot_be_removed_is_a_warning(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved = write(30)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.EACCES, "Permission denied")))
        Retention(Keep(last=1)).prune(saved.path, {})
    assert "older checkpoints in" in caplog.text
    assert newest_epoch(folder) == 30
