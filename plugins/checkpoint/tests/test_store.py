"""The four files of a checkpoint on disk, and what happens when one of them is damaged."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline_checkpoint import InvalidCheckpointError, NewerFormatError
from hookline_checkpoint.layout import find_checkpoints
from hookline_checkpoint.reading import newest_valid, read_checkpoint

FILES = ["policy.safetensors", "optimizer.safetensors", "state.json"]

Write = Callable[..., Any]


def newest_epoch(folder: Path) -> int | None:
    found, _ = newest_valid(folder)
    return None if found is None else found.contents.epoch


def flip_bit(data: bytes, position: int) -> bytes:
    flipped = bytearray(data)
    flipped[position // 8] ^= 1 << position % 8
    return bytes(flipped)


def test_a_checkpoint_holds_what_was_written(folder: Path) -> None:
    back = read_checkpoint(folder / "epoch-000020").contents
    assert (back.epoch, back.step, back.plugins) == (20, 160, {"a": {"n": 1}})
    assert back.policy["w"].tolist() == [20.0] * 100
    assert back.optimizer["m"][0].dtype == numpy.float32


def test_a_checkpoint_has_the_four_files_and_nothing_else(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"epoch-000010", "epoch-000020"}
    assert {path.name for path in (folder / "epoch-000020").iterdir()} == {*FILES, "manifest.json"}


def test_a_reader_and_a_writer_give_the_same_size_and_fingerprint(write: Write) -> None:
    saved = write(30)
    loaded = read_checkpoint(saved.path)
    assert (loaded.size_bytes, loaded.fingerprint) == (saved.size_bytes, saved.fingerprint)
    assert saved.size_bytes == sum(file.stat().st_size for file in saved.path.iterdir())
    assert write(40).fingerprint != saved.fingerprint


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_makes_a_checkpoint_invalid(folder: Path, name: str) -> None:
    file = folder / "epoch-000020" / name
    file.write_bytes(file.read_bytes()[:-1])
    found, skipped = newest_valid(folder)
    assert found is not None
    assert found.contents.epoch == 10
    assert str(skipped[0]).startswith(f"{folder / 'epoch-000020'}: {name} has ")


def test_a_manifest_cut_off_anywhere_makes_a_checkpoint_invalid(folder: Path) -> None:
    file = folder / "epoch-000020" / "manifest.json"
    data = file.read_bytes()
    for length in range(0, len(data), 5):
        file.write_bytes(data[:length])
        assert newest_epoch(folder) == 10


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_makes_a_checkpoint_invalid(folder: Path, name: str) -> None:
    file = folder / "epoch-000020" / name
    data = file.read_bytes()
    for position in random.Random(0).sample(range(len(data) * 8), 50):
        file.write_bytes(flip_bit(data, position))
        with pytest.raises(InvalidCheckpointError, match=f"{name} is damaged"):
            read_checkpoint(file.parent)
    assert newest_epoch(folder) == 10


def test_any_flipped_bit_in_a_manifest_makes_a_checkpoint_invalid(folder: Path) -> None:
    file = folder / "epoch-000020" / "manifest.json"
    data = file.read_bytes()
    version = data.index(b'"version": 1') + len(b'"version": ')
    for position in random.Random(0).sample(range(len(data) * 8), 400):
        file.write_bytes(flip_bit(data, position))
        # A version that reads 3, 5 or 9 now may be one: nothing is known of its files then.
        kind = NewerFormatError if position // 8 == version and position % 8 in (1, 2, 3) else InvalidCheckpointError
        with pytest.raises(kind):
            read_checkpoint(file.parent)


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
        (b"[" * 50_000, "manifest.json is not JSON"),
        (b" " * 200_000, "manifest.json has 200000 bytes, more than 100000"),
        (b"[]", "is not the manifest of a checkpoint"),
        (b'{"format": "hookline-checkpoint", "version": 0}', "version is 0, this release reads 3"),
        (b'{"format": "hookline-checkpoint", "version": "2"}', "version is '2', this release reads 3"),
        (b'{"format": "hookline-checkpoint", "version": 1}', "does not give the size and hash of state.json"),
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


def test_a_leftover_staging_folder_is_not_read_and_goes_with_the_next_save(folder: Path, write: Write) -> None:
    leftover = folder / ".staging-epoch-000030"
    (folder / "epoch-000020").rename(leftover)
    assert newest_epoch(folder) == 10
    write(30)
    assert not leftover.exists()
    assert newest_epoch(folder) == 30


def test_a_half_written_staging_folder_of_the_same_epoch_is_no_obstacle(folder: Path, write: Write) -> None:
    (folder / ".staging-epoch-000030").mkdir()
    (folder / ".staging-epoch-000030" / "policy.safetensors").write_bytes(b"half")
    write(30)
    assert newest_epoch(folder) == 30


def test_checkpoints_are_ordered_by_their_epoch_also_beyond_six_digits(folder: Path, write: Write) -> None:
    write(1_000_000)
    write(999_999)
    assert find_checkpoints(folder)[0].name == "epoch-1000000"


def test_a_damaged_checkpoint_is_replaced_when_its_epoch_comes_again(folder: Path, write: Write) -> None:
    (folder / "epoch-000020" / "manifest.json").unlink()
    write(20)
    assert newest_epoch(folder) == 20
    assert {path.name for path in folder.iterdir()} == {"epoch-000010", "epoch-000020"}


def test_a_checkpoint_that_was_about_to_be_replaced_is_still_found(folder: Path, write: Write) -> None:
    (folder / "epoch-000020").rename(folder / "epoch-000020.replaced")
    assert newest_epoch(folder) == 20
    write(20)
    assert not (folder / "epoch-000020.replaced").exists()
