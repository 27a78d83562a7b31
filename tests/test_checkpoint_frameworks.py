"""Policies and optimizers of every framework, saved and restored bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookline_checkpoint.contents import Contents
from hookline_checkpoint.reading import newest_valid
from hookline_checkpoint.retention import Keep
from hookline_checkpoint.saver import Saver

torch = pytest.importorskip("torch")


def saved_and_read(folder: Path, **parts: Any) -> Contents:
    saver = Saver(folder, Keep())
    saver.start(Contents(epoch=1, **parts))
    saver.finish(wait=True)
    found, _ = newest_valid(folder)
    assert found is not None
    return found.contents


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()


def build(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
    return model, torch.optim.AdamW(model.parameters())


def test_a_torch_optimizer_takes_the_same_step_after_it_was_restored(tmp_path: Path) -> None:
    (one, its_optimizer), (other, other_optimizer) = build(1), build(2)
    step(one, its_optimizer)
    read = saved_and_read(tmp_path, policy=one.state_dict(), optimizer=its_optimizer.state_dict())
    other.load_state_dict(read.policy)
    other_optimizer.load_state_dict(read.optimizer)
    for model, optimizer in ((one, its_optimizer), (other, other_optimizer)):
        step(model, optimizer)
    for before, after in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(before, after)


def test_torch_weights_that_are_trained_on_while_they_are_written_are_saved_as_they_were(tmp_path: Path) -> None:
    model, optimizer = build(1)
    step(model, optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    saver = Saver(tmp_path, Keep())
    saver.start(Contents(epoch=1, policy=model.state_dict(), optimizer=optimizer.state_dict()))
    for _ in range(20):
        step(model, optimizer)
    saver.finish(wait=True)
    found, _ = newest_valid(tmp_path)
    assert found is not None
    for name, value in found.contents.policy.items():
        assert torch.equal(value, before[name])
    assert found.contents.optimizer["state"][0]["step"] == 1


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"],
)
def test_every_type_of_torch_comes_back_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    whole = (torch.arange(24) * 1.1 - 3).reshape(2, 3, 4).to(getattr(torch, dtype))
    tree = {"plain": whole, "strided": whole.transpose(0, 2)[::2], "one": whole[0, 0, 1], "none": whole[:0]}
    read = saved_and_read(tmp_path, policy=tree).policy
    for name, value in tree.items():
        assert read[name].dtype == value.dtype
        assert read[name].shape == value.shape
        assert torch.equal(read[name], value)


def test_bfloat16_of_torch_is_what_safetensors_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    weights = torch.randn(5, 7).to(torch.bfloat16)
    saved_and_read(tmp_path, policy={"w": weights})
    assert torch.equal(load_file(tmp_path / "epoch-000001" / "policy.safetensors")["w"], weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_arrays_of_jax_come_back_as_numpy_arrays_of_the_same_type(tmp_path: Path, dtype: str) -> None:
    jax = pytest.importorskip("jax")
    weights = jax.numpy.arange(12).reshape(3, 4).astype(dtype) * 3
    read = saved_and_read(tmp_path, policy={"w": weights}).policy["w"]
    assert read.dtype == weights.dtype
    assert jax.numpy.array_equal(jax.numpy.asarray(read), weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_arrays_of_mlx_come_back_as_numpy_arrays_of_the_same_type(tmp_path: Path, dtype: str) -> None:
    mlx = pytest.importorskip("mlx.core")
    weights = (mlx.arange(12).reshape(3, 4) * 3).astype(getattr(mlx, dtype))
    read = saved_and_read(tmp_path, policy={"w": weights}).policy["w"]
    assert str(read.dtype) == dtype
    assert read.astype(np.float32).tolist() == weights.astype(mlx.float32).tolist()


def test_a_tensor_that_cannot_be_copied_is_named(tmp_path: Path) -> None:
    from hookline_checkpoint import CheckpointError

    with pytest.raises(CheckpointError, match="the array 'w', a Tensor, cannot be copied"):
        saved_and_read(tmp_path, policy={"w": torch.zeros(3, device="meta")})
