"""An untrusted folder of checkpoints cannot run code or reach files outside of itself."""

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline_checkpoint import InvalidCheckpointError
from hookline_checkpoint.layout import find_checkpoints
from hookline_checkpoint.reading import newest_valid, read_checkpoint
from hookline_checkpoint.retention import Keep, Retention

FILES = ["policy.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]

Write = Callable[..., Any]


def give(path: Path, name: str, data: bytes, called: str | None = None) -> None:
    """Put a file into a checkpoint, with a manifest that agrees."""
    (path / name).write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][called or name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


class Bomb:
    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.evidence),)


@pytest.mark.parametrize("name", FILES[:3])
def test_a_pickle_in_the_place_of_a_file_is_not_opened(folder: Path, tmp_path: Path, name: str) -> None:
    evidence = tmp_path / "code was run"
    give(folder / "epoch-000020", name, pickle.dumps(Bomb(evidence)))
    with pytest.raises(InvalidCheckpointError, match=r"arrays cannot be read|state\.json is not JSON"):
        read_checkpoint(folder / "epoch-000020")
    assert not evidence.exists()


@pytest.mark.parametrize("outside", ["../../secret.json", "/etc/hostname"])
def test_a_path_in_a_manifest_is_never_opened(folder: Path, outside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "epoch-000020"
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"] = {outside: {"size": 1, "sha256": "0" * 64}, **manifest["files"]}
    (path / "manifest.json").write_text(json.dumps(manifest))
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda file, *args, **kwargs: opened.append(str(file)) or real(file, *args, **kwargs)
    )
    read_checkpoint(path)
    assert sorted(opened) == sorted(str(path / name) for name in FILES)


def test_names_of_arrays_are_no_paths(folder: Path, tmp_path: Path) -> None:
    header = b'{"../../../evil":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}       '
    data = len(header).to_bytes(8, "little") + header + b"x"
    path = folder / "epoch-000020"
    give(path, "policy.safetensors", data)
    state = json.loads((path / "state.json").read_bytes())
    state["policy"] = {"dict": [["../../evil", {"array": "../../../evil"}]]}
    give(path, "state.json", json.dumps(state).encode())
    assert read_checkpoint(path).contents.policy["../../evil"].tolist() == [ord("x")]
    assert not list(tmp_path.parent.rglob("evil"))


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_the_place_of_a_file_is_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    path = folder / "epoch-000020"
    elsewhere = tmp_path / "elsewhere"
    (path / name).rename(elsewhere)
    (path / name).symlink_to(elsewhere)
    with pytest.raises(InvalidCheckpointError, match=f"{name} cannot be read: it is a symbolic link"):
        read_checkpoint(path)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder: Path) -> None:
    path = folder / "epoch-000020"
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")
    with pytest.raises(InvalidCheckpointError, match=r"manifest\.json is not a file"):
        read_checkpoint(path)


def test_a_link_in_the_place_of_a_checkpoint_is_neither_read_nor_emptied(
    folder: Path, tmp_path: Path, write: Write
) -> None:
    treasure = tmp_path / "treasure"
    (folder / "epoch-000010").rename(treasure)
    for name in (
        "epoch-000005",
        "epoch-000030",
        "epoch-000020.replaced",
        ".staging-epoch-000007",
        ".discarded-epoch-1",
    ):
        (folder / name).symlink_to(treasure)
    assert [path.name for path in find_checkpoints(folder)] == ["epoch-000020"]
    saved = write(30)  # the name is taken by a link
    Retention(Keep(last=1)).prune(saved.path, {})
    assert {path.name for path in treasure.iterdir()} == set(FILES)
    found, _ = newest_valid(folder)
    assert found is not None
    assert (found.path.name, found.contents.epoch) == ("epoch-000030", 30)
    assert not found.path.is_symlink()


def test_a_state_that_is_nested_without_end_is_invalid(folder: Path) -> None:
    path = folder / "epoch-000020"
    give(path, "state.json", b'{"policy": ' + b'{"list": [' * 100_000)
    with pytest.raises(InvalidCheckpointError, match=r"state\.json is not JSON"):
        read_checkpoint(path)
