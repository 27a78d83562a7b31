"""The order of a save's system calls. A missing or early fsync or rename would lose data in a power cut."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Any]


def record(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[tuple[str, str]]:
    """Each call with the path it is about, below `root`; writes to one file in a row are one."""
    calls: list[tuple[str, str]] = []
    own_thread = threading.get_ident()

    def told(call: str, path: Path) -> None:
        if threading.get_ident() != own_thread:
            return  # a thread that an earlier test has left
        entry = call, str(path.relative_to(root))
        if call != "write" or calls[-1] != entry:
            calls.append(entry)

    def of_path(call: str) -> None:
        real = getattr(os, call)

        def run(path: Any, *arguments: Any, **options: Any) -> Any:
            told(call, Path(path))
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, call, run)

    def of_descriptor(call: str) -> None:
        real = getattr(os, call)

        def run(descriptor: int, *arguments: Any) -> Any:
            told(call, Path(f"/proc/self/fd/{descriptor}").readlink())
            return real(descriptor, *arguments)

        monkeypatch.setattr(os, call, run)

    of_path("mkdir")
    of_path("rename")
    of_descriptor("write")
    of_descriptor("fsync")
    return calls


def test_every_file_and_every_folder_is_on_disk_before_what_depends_on_it(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = record(patch, tmp_path)
        write(30)
    staging = "checkpoints/.staging-epoch-000030"
    files = ["state.json", "policy.safetensors", "optimizer.safetensors", "manifest.json"]
    assert calls == [
        ("mkdir", "checkpoints"),
        ("mkdir", staging),
        *((call, f"{staging}/{name}") for name in files for call in ("write", "fsync")),
        ("fsync", staging),
        ("rename", staging),
        ("fsync", "checkpoints"),
        ("fsync", "."),
    ]


def test_a_checkpoint_that_is_replaced_is_removed_once_the_new_one_is_on_disk(
    folder: Path, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = record(patch, tmp_path)
        write(20)
    assert calls[-6:] == [
        ("fsync", "checkpoints/.staging-epoch-000020"),
        ("rename", "checkpoints/epoch-000020"),
        ("rename", "checkpoints/.staging-epoch-000020"),
        ("fsync", "checkpoints"),
        ("fsync", "."),
        ("rename", "checkpoints/epoch-000020.replaced"),
    ]


def test_what_plugins_want_to_be_on_disk_is_waited_for_before_the_checkpoint_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookline_checkpoint.contents import Contents
    from hookline_checkpoint.snapshot import SnapshotBuffers
    from hookline_checkpoint.store import write_checkpoint

    with monkeypatch.context() as patch:
        calls = record(patch, tmp_path)
        write_checkpoint(
            tmp_path / "checkpoints",
            SnapshotBuffers().take(Contents(epoch=30)),
            lambda: calls.append(("waited", "")),
        )
    place = calls.index(("waited", ""))
    assert calls[place - 1] == ("fsync", "checkpoints/.staging-epoch-000030")
    assert calls[place + 1] == ("rename", "checkpoints/.staging-epoch-000030")
