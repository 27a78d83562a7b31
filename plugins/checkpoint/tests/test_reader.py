"""For any bytes on disk, the reader returns a checkpoint or an error that says what is wrong."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline_checkpoint import CheckpointError, InvalidCheckpointError
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.reading import Loaded, newest_valid, read_checkpoint, read_metrics
from hookline_checkpoint.snapshot import SnapshotBuffers
from hookline_checkpoint.store import write_checkpoint

FILES = ("policy.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
TWENTY_GIGABYTES = 20 * 10**9


def agree(path: Path, name: str, size: int, sha256: str = "0" * 64) -> None:
    """Let the manifest say this of a file."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][name] = {"size": size, "sha256": sha256}
    (path / "manifest.json").write_text(json.dumps(manifest))


def give(path: Path, name: str, data: bytes) -> None:
    (path / name).write_bytes(data)
    if name != "manifest.json":
        agree(path, name, len(data), hashlib.sha256(data).hexdigest())


def change_state(path: Path, change: Callable[[Any], object]) -> None:
    state = json.loads((path / "state.json").read_bytes())
    change(state)
    give(path, "state.json", json.dumps(state).encode())


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_sparse_file_of_twenty_gigabytes_is_not_read(folder: Path, name: str) -> None:
    path = folder / "epoch-000020"
    os.truncate(path / name, TWENTY_GIGABYTES)
    if name != "manifest.json":
        agree(path, name, TWENTY_GIGABYTES)
    with pytest.raises(
        InvalidCheckpointError, match=f"{name} (has {TWENTY_GIGABYTES} bytes, more|is damaged: its arrays)"
    ):
        read_checkpoint(path)
    found, _ = newest_valid(folder)
    assert found is not None
    assert found.contents.epoch == 10


READ_IN_LITTLE_MEMORY = f"""
import resource, sys
from pathlib import Path
from hookline_checkpoint.reading import newest_valid
resource.setrlimit(resource.RLIMIT_AS, ({4 * 10**9}, {4 * 10**9}))
found, skipped = newest_valid(Path(sys.argv[1]))
print(found.contents.epoch, *skipped)
"""


def test_a_file_that_is_larger_than_the_memory_is_an_error_that_says_so(folder: Path) -> None:
    path = folder / "epoch-000020" / "policy.safetensors"
    size = TWENTY_GIGABYTES
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    agree(path.parent, path.name, path.stat().st_size)
    said = subprocess.check_output([sys.executable, "-c", READ_IN_LITTLE_MEMORY, str(folder)], text=True)
    assert said.startswith("10 ")
    assert "policy.safetensors is larger than the available memory" in said


@pytest.mark.parametrize("length", [0, 2**63, 2**64 - 1, 10**9])
def test_a_header_of_an_absurd_length_is_damage(folder: Path, length: int) -> None:
    path = folder / "epoch-000020"
    give(path, "policy.safetensors", length.to_bytes(8, "little") + b"{}      ")
    with pytest.raises(InvalidCheckpointError, match=f"a header of {length} bytes in a file of 16"):
        read_checkpoint(path)


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN", "1" + "0" * 400, "true", "-1", '"7"', "null"])
@pytest.mark.parametrize("counter", ["epoch", "step", "agent_step"])
def test_a_counter_that_cannot_be_counted_with_makes_a_checkpoint_invalid(
    folder: Path, counter: str, number: str
) -> None:
    path = folder / "epoch-000020"
    state = json.loads((path / "state.json").read_bytes())
    state["counters"][counter] = "HERE"
    give(path, "state.json", json.dumps(state).replace('"HERE"', number).encode())
    found, skipped = newest_valid(folder)
    assert found is not None
    assert found.contents.epoch == 10
    assert "state.json is not" in str(skipped[0])


@pytest.mark.parametrize("number", ["1e999", "Infinity", "NaN", "1" + "0" * 400, "[]"])
def test_a_score_that_is_no_finite_number_makes_a_checkpoint_invalid(folder: Path, number: str) -> None:
    path = folder / "epoch-000020"
    change_state(path, lambda state: state["metrics"].update(success="HERE"))
    data = (path / "state.json").read_bytes().replace(b'"HERE"', number.encode())
    give(path, "state.json", data)
    with pytest.raises(InvalidCheckpointError, match=r"state\.json is not"):
        read_checkpoint(path)
    assert read_metrics(path) == {} or number == "1e999"


# -- any bytes --------------------------------------------------------------------------------------------------------


@cache
def files_of_a_checkpoint() -> dict[str, bytes]:
    array = numpy.arange(6, dtype=numpy.float32)
    contents = Contents(
        epoch=3,
        policy={"w": array, "b": array.astype("bool")},
        optimizer={"m": [array, (1, 2.5, None)], 0: float("inf")},
        plugins={"a": {"n": 1}},
        metrics={"success": 0.5},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = write_checkpoint(Path(folder), SnapshotBuffers().take(contents)).path
        return {name: (path / name).read_bytes() for name in FILES}


@contextmanager
def a_checkpoint() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files_of_a_checkpoint().items():
            (Path(folder) / name).write_bytes(data)
        yield Path(folder)


def read(path: Path) -> Loaded | CheckpointError:
    try:
        return read_checkpoint(path)
    except CheckpointError as error:
        assert str(path) in str(error)
        return error


KEYS = st.sampled_from(["dict", "list", "tuple", "array", "float", "torch", "x"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just({"array": "w"})
INNER = st.lists(LEAVES, max_size=3) | st.dictionaries(KEYS, LEAVES, max_size=3)
NODES = LEAVES | st.lists(INNER, max_size=3) | st.dictionaries(KEYS, INNER, max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_checkpoint_with_any_bytes_changed_is_valid_or_says_why_not(data: st.DataObject) -> None:
    with a_checkpoint() as path:
        name = data.draw(st.sampled_from(FILES))
        found = bytearray((path / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(found)))
            end = data.draw(st.integers(start, min(len(found), start + 12)))
            found[start:end] = data.draw(st.binary(max_size=12))
        give(path, name, bytes(found))
        read(path)
        read_metrics(path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_checkpoint_with_any_json_in_its_state_is_valid_or_says_why_not(data: st.DataObject) -> None:
    with a_checkpoint() as path:
        state = json.loads((path / "state.json").read_bytes())
        key = data.draw(st.sampled_from([*state, "counters.epoch"]))
        outer, _, inner = key.partition(".")
        (state[outer] if inner else state)[inner or outer] = data.draw(NODES)
        give(path, "state.json", json.dumps(state).encode())
        read(path)
        read_metrics(path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_checkpoint_with_any_header_of_arrays_is_valid_or_says_why_not(data: st.DataObject) -> None:
    entry = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "BF16", "F8_E5M2", "BOOL", "I64", "?"]) | NODES,
            "shape": st.lists(st.integers(-2, 2**64), max_size=3) | NODES,
            "data_offsets": st.tuples(st.integers(0, 32), st.integers(0, 32)) | NODES,
        },
    )
    header = json.dumps(data.draw(st.dictionaries(st.sampled_from(["w", "b", "__metadata__"]), entry | NODES))).encode()
    with a_checkpoint() as path:
        give(path, "policy.safetensors", len(header).to_bytes(8, "little") + header + data.draw(st.binary(max_size=32)))
        read(path)
