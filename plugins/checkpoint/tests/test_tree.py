import json
import math
import sys
from collections import namedtuple
from typing import Any

import numpy
import pytest
import safetensors.numpy

from hookline_checkpoint import CheckpointError, InvalidCheckpointError
from hookline_checkpoint.arrays import Arrays, ReusedBuffer, read_arrays
from hookline_checkpoint.tree import join_tree, split_tree


def as_file(arrays: Arrays) -> bytes:
    return b"".join(ReusedBuffer().fill(arrays))


def through_files(tree: Any) -> Any:
    arrays, description = split_tree(tree, "the tree")
    return join_tree(json.loads(json.dumps(description, allow_nan=False)), read_arrays(as_file(arrays)))


def test_a_structure_comes_back_as_it_was() -> None:
    tree = {
        "state": {0: {"step": 3}, 1: {}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "amsgrad": False, "x": None}],
    }
    assert through_files(tree) == tree


def test_keys_keep_their_type_and_their_order() -> None:
    assert list(through_files({"1": "text", 1: "number", "b": 0, "a": 0})) == ["1", 1, "b", "a"]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_numbers_come_back(value: float) -> None:
    assert through_files([value]) == [value]


def test_not_a_number_comes_back() -> None:
    assert math.isnan(through_files({"loss": math.nan})["loss"])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"])
def test_arrays_keep_their_type_and_shape(dtype: str) -> None:
    for shape in [(), (0, 3), (2, 3)]:
        array = numpy.ones(shape, dtype)
        back = through_files([array])[0]
        assert back.dtype == array.dtype
        assert back.shape == shape


def test_an_array_is_named_by_its_path() -> None:
    arrays, _ = split_tree({"layer.weight": numpy.zeros(1), "groups": [{"m": numpy.zeros(1)}]}, "the tree")
    assert list(arrays) == ["layer.weight", "groups.0.m"]


def test_paths_that_read_the_same_keep_their_arrays_apart() -> None:
    tree = {"a.b": numpy.array(1), "a": {"b": numpy.array(2)}, 1: numpy.array(3), "1": numpy.array(4)}
    back = through_files({**tree, "__metadata__": numpy.array(5)})
    assert [back["a.b"], back["a"]["b"], back[1], back["1"], back["__metadata__"]] == [1, 2, 3, 4, 5]


def test_an_array_that_does_not_lie_in_memory_in_order_keeps_its_values() -> None:
    grid = numpy.arange(6).reshape(2, 3)
    assert through_files([grid.T])[0].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert through_files([grid[:, ::-2]])[0].tolist() == [[2, 0], [5, 3]]
    assert through_files([grid.astype(">i4")])[0].tolist() == grid.tolist()


def test_the_file_is_one_that_safetensors_reads() -> None:
    tree = {"a": numpy.ones(3, "uint8"), "b": numpy.full((2, 2), 0.5), "c": numpy.zeros((0, 4), "float32")}
    back = safetensors.numpy.load(as_file(split_tree(tree, "the tree")[0]))
    assert {name: array.tolist() for name, array in back.items()} == {name: a.tolist() for name, a in tree.items()}
    assert {name: array.dtype for name, array in back.items()} == {name: a.dtype for name, a in tree.items()}


def test_memory_is_used_again() -> None:
    buffer = ReusedBuffer()
    _, first = buffer.fill({"w": numpy.zeros(1000)})
    header, second = buffer.fill({"w": numpy.ones(900)})
    assert numpy.shares_memory(numpy.asarray(first), numpy.asarray(second))
    assert read_arrays(bytes(header) + bytes(second))["w"].as_numpy().tolist() == [1.0] * 900


Pair = namedtuple("Pair", "one other")


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", Pair(1, 2), 1j])
def test_what_cannot_be_held_is_named_with_its_place(value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"the tree\['a'\]\[1\] is a {type(value).__name__}, which a checkpoint"):
        split_tree({"a": [0, value]}, "the tree")


def test_a_key_that_cannot_be_held_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"the tree\['a'\] has the key \(0, 1\)"):
        split_tree({"a": {(0, 1): 3}}, "the tree")


def test_an_array_type_that_cannot_be_held_is_named() -> None:
    with pytest.raises(
        CheckpointError, match=r"the tree\['w'\] is an array of complex128.*such as float32 or bfloat16"
    ):
        split_tree({"w": numpy.zeros(2, "complex128")}, "the tree")


@pytest.mark.parametrize("description", [{"array": "gone"}, {"code": "import os"}, {"float": "1"}, {}])
def test_a_description_of_nothing_is_an_error(description: object) -> None:
    with pytest.raises(InvalidCheckpointError, match="the array .gone. is missing|invalid description"):
        join_tree({"list": [description]}, {})


@pytest.mark.parametrize("data", [b"", b"\x00" * 8, as_file({"w": numpy.zeros(3)})[:-1]])
def test_a_file_that_holds_no_arrays_is_an_error(data: bytes) -> None:
    with pytest.raises(InvalidCheckpointError, match="its arrays cannot be read"):
        read_arrays(data)


def test_an_array_of_bfloat16_needs_ml_dtypes_where_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    array = read_arrays(as_file({"w": numpy.zeros(2, "uint16")}).replace(b'"U16"', b'"BF16"').replace(b"}} ", b"}}"))
    with pytest.raises(CheckpointError, match="'w' is of bfloat16, .* pip install .hookline-checkpoint.bfloat16."):
        array["w"].as_numpy()
