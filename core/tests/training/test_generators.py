"""The random generators of a run, as they are saved and restored: those of GPUs by stand-ins, since none is here."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hookline.training.resume_point import restore_generators, seed_generators, take_generators


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.random(), torch.rand(()).item()


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def test_generators_go_on_where_they_were_saved() -> None:
    seed_generators(3)
    draw()
    saved = through_json(take_generators())
    wanted = [draw() for _ in range(3)]
    seed_generators(4)
    restore_generators(saved)
    assert [draw() for _ in range(3)] == wanted


class Devices:
    """The generators of GPUs, in the place of torch's functions: generators of the CPU, one for each device."""

    def __init__(self, count: int) -> None:
        self.generators = [torch.Generator() for _ in range(count)]

    def states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self.generators]

    def set_states(self, states: list[Tensor]) -> None:
        assert len(states) <= len(self.generators), "torch refuses states of devices that are not there"
        for generator, state in zip(self.generators, states, strict=False):
            generator.set_state(state)

    def draw(self) -> list[float]:
        return [torch.rand((), generator=generator).item() for generator in self.generators]


def with_cuda(monkeypatch: pytest.MonkeyPatch, count: int) -> Devices:
    devices = Devices(count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", devices.states)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", devices.set_states)
    return devices


def test_the_generators_of_all_cuda_devices_go_on_where_they_were_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = with_cuda(monkeypatch, 2)
    for seed, generator in enumerate(devices.generators):
        generator.manual_seed(seed)
    devices.draw()
    saved = through_json(take_generators())
    wanted = devices.draw()
    assert wanted[0] != wanted[1]
    for generator in devices.generators:
        generator.manual_seed(9)
    restore_generators(saved)
    assert devices.draw() == wanted


def test_a_machine_with_fewer_gpus_takes_the_generators_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    saved_on = with_cuda(monkeypatch, 2)
    saved = through_json(take_generators())
    wanted = saved_on.draw()
    fewer = with_cuda(monkeypatch, 1)
    fewer.generators[0].manual_seed(9)
    restore_generators(saved)
    assert fewer.draw() == wanted[:1]
    with_cuda(monkeypatch, 0)
    restore_generators(saved)


def test_the_generator_of_an_apple_gpu_goes_on_where_it_was_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Devices(1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: device.states()[0])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: device.set_states([state]))
    saved = through_json(take_generators())
    wanted = device.draw()
    device.generators[0].manual_seed(9)
    restore_generators(saved)
    assert device.draw() == wanted
