import importlib.util
import json
import math
import subprocess
import sys
from collections import namedtuple
from typing import Any

import numpy
import pytest

from hookline_checkpoint import CheckpointError, InvalidCheckpointError
from hookline_checkpoint.tree import join_tree, split_tree


def through_json(tree: Any) -> Any:
    arrays, description = split_tree(tree, "the tree")
    return join_tree(json.loads(json.dumps(description, allow_nan=False)), arrays)


def test_a_structure_comes_back_as_it_was() -> None:
    tree = {
        "state": {0: {"step": 3}, 1: {}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "amsgrad": False, "x": None}],
    }
    assert through_json(tree) == tree


def test_keys_keep_their_type_and_their_order() -> None:
    assert list(through_json({"1": "text", 1: "number", "b": 0, "a": 0})) == ["1", 1, "b", "a"]


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_numbers_come_back(value: float) -> None:
    assert through_json([value]) == [value]


def test_not_a_number_comes_back() -> None:
    assert math.isnan(through_json({"loss": math.nan})["loss"])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"])
def test_arrays_keep_their_type_and_shape(dtype: str) -> None:
    for shape in [(), (0, 3), (2, 3)]:
        array = numpy.ones(shape, dtype)
        back = through_json([array])[0]
        assert back.dtype == array.dtype
        assert back.shape == shape


def test_an_array_is_named_by_its_path() -> None:
    arrays, _ = split_tree({"layer.weight": numpy.zeros(1), "groups": [{"m": numpy.zeros(1)}]}, "the tree")
    assert list(arrays) == ["layer.weight", "groups.0.m"]


def test_paths_that_read_the_same_keep_their_arrays_apart() -> None:
    tree = {"a.b": numpy.array(1), "a": {"b": numpy.array(2)}, 1: numpy.array(3), "1": numpy.array(4)}
    back = through_json({**tree, "__metadata__": numpy.array(5)})
    assert [back["a.b"], back["a"]["b"], back[1], back["1"], back["__metadata__"]] == [1, 2, 3, 4, 5]


def test_a_transposed_array_keeps_its_values() -> None:
    arrays, _ = split_tree([numpy.arange(6).reshape(2, 3).T], "the tree")
    assert arrays["0"].flags.c_contiguous
    assert arrays["0"].tolist() == [[0, 3], [1, 4], [2, 5]]


Pair = namedtuple("Pair", "one other")


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", Pair(1, 2), 1j])
def test_what_cannot_be_held_is_named_with_its_place(value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"the tree\['a'\]\[1\] is a {type(value).__name__}, which a checkpoint"):
        split_tree({"a": [0, value]}, "the tree")


def test_a_key_that_cannot_be_held_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"the tree\['a'\] has the key \(0, 1\)"):
        split_tree({"a": {(0, 1): 3}}, "the tree")


def test_an_array_type_that_cannot_be_held_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"the tree\['w'\] is an array of complex128.*such as float32"):
        split_tree({"w": numpy.zeros(2, "complex128")}, "the tree")


@pytest.mark.parametrize("description", [{"array": "gone"}, {"code": "import os"}, {"float": "1"}, {}])
def test_a_description_of_nothing_is_an_error(description: object) -> None:
    with pytest.raises(InvalidCheckpointError, match="described"):
        join_tree({"list": [description]}, {})


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_tensors_come_back_as_tensors_and_an_optimizer_takes_them() -> None:
    # A process of its own: the other tests hold for one that has never imported torch.
    code = """
import torch
from hookline_checkpoint import CheckpointError
from hookline_checkpoint.tree import join_tree, split_tree

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()

models, optimizers = [], []
for seed in (1, 2):
    torch.manual_seed(seed)
    models.append(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2)))
    optimizers.append(torch.optim.AdamW(models[-1].parameters()))
step(models[0], optimizers[0])
for one, other in ((models[0], models[1]), (optimizers[0], optimizers[1])):
    arrays, description = split_tree(one.state_dict(), "it")
    other.load_state_dict(join_tree(description, {name: array.copy() for name, array in arrays.items()}))
for model, optimizer in zip(models, optimizers):
    step(model, optimizer)
for one, other in zip(models[0].state_dict().values(), models[1].state_dict().values()):
    assert torch.equal(one, other)
try:
    split_tree({"w": torch.zeros(1, dtype=torch.bfloat16)}, "it")
except CheckpointError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "it['w'] is an array of torch.bfloat16" in result.stdout
