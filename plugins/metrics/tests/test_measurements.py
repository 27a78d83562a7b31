"""Phases and rates, gradients, the machine."""

import math
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline_hookspecs import EvaluationRequest, HookContext, Rollout, TrainerState
from hookline_metrics.measurements import PhaseTimer, SystemMonitor, gradient_statistics

Read = Callable[..., list[tuple[Any, ...]]]


def test_time_belongs_to_the_innermost_phase() -> None:
    phases = PhaseTimer(0.0)
    phases.restart(0, 0, 0.0)
    for at, act, phase in (
        (1.0, phases.enter, "rollout"),
        (3.0, phases.enter, "evaluation"),
        (4.0, phases.leave, "evaluation"),
        (5.0, phases.leave, "rollout"),
        (5.0, phases.enter, "train"),
        (6.0, phases.enter, "validation"),
        (7.0, phases.leave, "validation"),
        (8.0, phases.leave, "train"),
    ):
        act(phase, at)
    assert phases.numbers(20, 500, 10.0) == {
        "time/rollout": 3.0,
        "time/evaluation": 1.0,
        "time/train": 2.0,
        "time/validation": 1.0,
        "time/other": 3.0,
        "time/rollout_share": 0.3,
        "time/evaluation_share": 0.1,
        "time/train_share": 0.2,
        "time/validation_share": 0.1,
        "time/other_share": 0.3,
        "time/checkpoint": 0.0,
        "time/checkpoint_share": 0.0,
        "rate/steps_per_second": 2.0,
        "rate/agent_steps_per_second": 50.0,
    }


def test_a_phase_whose_end_is_not_announced_ends_with_the_one_around_it() -> None:
    phases = PhaseTimer(0.0)
    phases.restart(0, 0, 0.0)
    phases.enter("train", 0.0)
    phases.enter("evaluation", 0.0)
    phases.leave("train", 1.0)
    assert phases.current == "other"


def test_a_loop_that_announces_steps_and_no_phases_spends_its_time_on_training() -> None:
    phases = PhaseTimer(0.0)
    phases.restart(0, 0, 0.0)
    spent = phases.numbers(8, 0, 4.0)
    assert {name: value for name, value in spent.items() if value} == {
        "time/train": 4.0,
        "time/train_share": 1.0,
        "rate/steps_per_second": 2.0,
    }


def test_the_events_of_a_run_say_where_its_time_goes(
    manager: PluginManager, hookline_state: Callable[..., TrainerState], read: Read
) -> None:
    emit, state = manager.emit, hookline_state(step=0)
    emit.on_new_training_run(state=state)
    emit.pre_training(state=state, report_data={})
    emit.on_epoch_start(state=state)
    emit.on_rollout_start(context=HookContext())
    emit.on_rollout_end(context=HookContext(), rollout=Rollout())
    emit.on_train_phase_start(state=state)
    emit.pre_validation(state=state, report_data={})
    emit.post_validation(state=state, report_data={})
    state.step, state.agent_step = 10, 100
    emit.on_train_phase_end(state=state)
    emit.on_evaluation_start(state=state, request=EvaluationRequest())
    emit.on_evaluation_end(state=state, scores={})
    emit.save_plugin_state(state=state)
    emit.on_epoch_end(state=state)
    emit.on_training_complete(state=state)
    manager.drain()
    names = {name for (name,) in read("SELECT name FROM metrics")}
    assert names >= {
        *(f"time/{phase}" for phase in ("rollout", "train", "validation", "evaluation", "checkpoint", "other")),
        "rate/steps_per_second",
        "rate/agent_steps_per_second",
    }
    [(share,)] = read("SELECT sum(value) FROM metrics WHERE name LIKE 'time/%_share'")
    assert share == pytest.approx(1.0)


class Array:
    """The part of a tensor's interface that is used, without a framework."""

    def __init__(self, *values: float) -> None:
        self.values = values
        self.shape = (len(values),)

    def __mul__(self, other: "Array") -> "Array":
        return Array(*(a * b for a, b in zip(self.values, other.values, strict=True)))

    def sum(self) -> float:
        return sum(self.values)


class Parameter:
    def __init__(self, grad: Array | None) -> None:
        self.grad = grad


class Policy:
    looks = 0

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        self.looks += 1
        yield "actor.0.weight", Parameter(Array(3.0, 1.0))
        yield "actor.0.bias", Parameter(Array(2.0))
        yield "critic.weight", Parameter(Array(4.0, 4.0))
        yield "scale", Parameter(Array(1.0))
        yield "frozen.weight", Parameter(None)


def test_gradients_have_a_norm_and_a_variance_by_module() -> None:
    statistics = gradient_statistics(Policy())
    assert statistics == pytest.approx(
        {
            "gradients/actor.0/norm": math.sqrt(14),
            "gradients/actor.0/variance": 14 / 3 - 4,
            "gradients/critic/norm": math.sqrt(32),
            "gradients/critic/variance": 0.0,
            "gradients/scale/norm": 1.0,
            "gradients/scale/variance": 0.0,
            "gradients/norm": math.sqrt(47),
        }
    )


@pytest.mark.parametrize("policy", [None, object()])
def test_a_policy_without_gradients_has_no_statistics(policy: object) -> None:
    assert gradient_statistics(policy) == {}


def test_gradients_are_looked_at_when_that_is_due_and_at_no_other_step(
    with_metrics: Callable[..., PluginManager], hookline_state: Callable[..., TrainerState], read: Read
) -> None:
    manager = with_metrics(gradients_every=10)
    policy = Policy()
    state = hookline_state(step=25, policy=policy)
    manager.emit.on_new_training_run(state=state)
    manager.emit.pre_training(state=state, report_data={})
    manager.set_clocks(step=25)
    for state.step in (26, 29, 30, 31, 39, 52, 53):  # from 39 to 52 the clock jumps past two of them
        manager.emit.on_mb_end(state=state)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    assert read("SELECT step FROM metrics WHERE name = 'gradients/norm' ORDER BY step") == [(30,), (52,)]
    assert policy.looks == 2


def test_gradients_can_be_left_alone(
    with_metrics: Callable[..., PluginManager], hookline_state: Callable[..., TrainerState]
) -> None:
    manager = with_metrics(gradients_every=0)
    policy = Policy()
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.on_mb_end(state=hookline_state(step=100, policy=policy))
    assert policy.looks == 0


def test_the_machine_is_looked_at_off_the_training_thread(
    with_metrics: Callable[..., PluginManager],
    hookline_state: Callable[..., TrainerState],
    read: Read,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    manager = with_metrics(system_every=0.1)
    manager.emit.on_new_training_run(state=hookline_state())
    eventually(lambda: read("SELECT 1 FROM metrics WHERE name = 'system/cpu_percent'"))
    values = dict(read("SELECT name, value FROM metrics WHERE name LIKE 'system/%'"))
    assert set(values) >= {
        "system/cpu_percent",
        "system/memory_percent",
        "system/process_memory_mb",
        "system/disk_percent",
        "system/disk_free_mb",
    }
    assert 0 < values["system/memory_percent"] <= 100
    assert values["system/process_memory_mb"] > 1


def make_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_gpus_are_there_when_the_driver_knows_of_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_nvidia_smi(tmp_path, "echo '35, 2000, 8000'; echo '0, 10, 8000'", monkeypatch)
    numbers = SystemMonitor(tmp_path).numbers()
    assert {name: value for name, value in numbers.items() if "gpu" in name} == {
        "system/gpu0/percent": 35.0,
        "system/gpu0/memory_mb": 2000.0,
        "system/gpu0/memory_percent": 25.0,
        "system/gpu1/percent": 0.0,
        "system/gpu1/memory_mb": 10.0,
        "system/gpu1/memory_percent": 0.125,
    }


def test_a_driver_that_does_not_work_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_nvidia_smi(tmp_path, f"echo asked >> {tmp_path}/asked; exit 9", monkeypatch)
    monitor = SystemMonitor(tmp_path)
    for _ in range(3):
        assert not [name for name in monitor.numbers() if "gpu" in name]
    assert (tmp_path / "asked").read_text() == "asked\n"
