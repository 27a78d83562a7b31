"""A policy larger than one file should be is saved in shards, as Hugging Face saves a model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file

from hookline_checkpoint import InvalidCheckpointError
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.reading import newest_valid, read_checkpoint
from hookline_checkpoint.snapshot import SnapshotBuffers
from hookline_checkpoint.store import write_checkpoint

POLICY = {f"layer.{number}": numpy.full(size, number, numpy.float32) for number, size in enumerate([6, 5, 4, 30, 1])}
SHARDS = ["policy-00001-of-00003.safetensors", "policy-00002-of-00003.safetensors", "policy-00003-of-00003.safetensors"]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline_checkpoint.snapshot.LARGEST_SHARD", 60)


def save(folder: Path, epoch: int = 7, policy: Any = POLICY, **others: Any) -> Path:
    buffers = SnapshotBuffers()
    buffers.reserve(policy, None)()
    return write_checkpoint(folder, buffers.take(Contents(epoch=epoch, policy=policy, **others))).path


def test_the_shards_and_their_index_are_those_of_hugging_face(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert sorted(file.name for file in path.glob("policy*")) == [*SHARDS, "policy.safetensors.index.json"]
    index = json.loads((path / "policy.safetensors.index.json").read_bytes())
    assert index["metadata"] == {"total_size": 4 * 46}
    assert index["weight_map"] == {name: SHARDS[(0, 0, 0, 1, 2)[number]] for number, name in enumerate(POLICY)}
    found = {name: array for shard in SHARDS for name, array in load_file(path / shard).items()}
    assert all((found[name] == array).all() for name, array in POLICY.items())


def test_a_policy_in_shards_is_restored_with_its_size_and_fingerprint(tmp_path: Path) -> None:
    path = save(tmp_path, plugins={"a": {"n": numpy.arange(3)}})
    loaded = read_checkpoint(path)
    assert list(loaded.contents.policy) == list(POLICY)
    assert all((loaded.contents.policy[name] == array).all() for name, array in POLICY.items())
    assert loaded.contents.plugins["a"]["n"].tolist() == [0, 1, 2]
    assert loaded.size_bytes == sum(file.stat().st_size for file in path.iterdir())


def test_the_manifest_covers_every_shard_and_asks_for_a_release_that_reads_them(tmp_path: Path) -> None:
    manifest = json.loads((save(tmp_path) / "manifest.json").read_bytes())
    assert manifest["version"] == 3
    assert {*SHARDS, "policy.safetensors.index.json"} < manifest["files"].keys()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)


def unlist(file: Path) -> None:
    manifest = json.loads((file.parent / "manifest.json").read_bytes())
    del manifest["files"][file.name]
    (file.parent / "manifest.json").write_text(json.dumps(manifest))


INDEX = "policy.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "damage"),
    [(name, damage) for name in (*SHARDS, INDEX) for damage in (Path.unlink, flip)]
    + [(name, unlist) for name in SHARDS],
)
def test_a_checkpoint_with_a_damaged_shard_is_not_valid(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    save(tmp_path, epoch=6)
    path = save(tmp_path)
    damage(path / name)
    with pytest.raises(InvalidCheckpointError, match=name):
        read_checkpoint(path)
    found, _ = newest_valid(tmp_path)
    assert found is not None
    assert found.contents.epoch == 6


def test_a_policy_that_fits_one_file_has_no_shards(tmp_path: Path) -> None:
    path = save(tmp_path, policy={"layer": numpy.zeros(15, numpy.float32)})
    assert [file.name for file in path.glob("policy*")] == ["policy.safetensors"]
    assert json.loads((path / "manifest.json").read_bytes())["version"] == 1
