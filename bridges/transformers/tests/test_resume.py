"""A run that was stopped and resumed from the trainer's checkpoint is the run that was never stopped, or is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_trainers
import torch
from tiny_trainers import EndAfterStep, digest, losses, make_trainer

from hookline import hookimpl
from hookline.errors import HooklineError
from hookline_hookspecs import TrainerState
from hookline_transformers import HooklineCallback, hookline_run
from hookline_transformers.host_checkpoint import pack, unpack


class Counter:
    """Counts steps, and remembers the count over a resume."""

    def __init__(self) -> None:
        self.steps = 0
        self.epochs: list[int] = []
        self.restored = False

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        self.epochs.append(state.epoch)

    @hookimpl
    def post_training_step(self) -> None:
        self.steps += 1

    @hookimpl
    def save_plugin_state(self) -> Mapping[str, Any]:
        return {"steps": self.steps, "epochs": self.epochs}

    @hookimpl
    def load_plugin_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        self.steps, self.epochs = saved["counter"]["steps"], saved["counter"]["epochs"]

    @hookimpl
    def on_checkpoint_restored(self) -> None:
        self.restored = True


def train(kind: str, folder: Path, *, resume: bool | str = False, plugins: Mapping[str, object], **more: Any) -> Any:
    trainer = make_trainer(kind, folder, HooklineCallback(folder / "run", plugins=plugins), **more)
    with hookline_run(trainer):
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def stop_after_step(kind: str, folder: Path, step: int, **more: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        train(kind, folder, plugins={"counter": Counter(), "ender": EndAfterStep("raise", step)}, **more)


@pytest.mark.parametrize(
    ("kind", "stopped_after", "more"),
    [
        ("trainer", 3, {}),  # in the middle of an epoch, and the checkpoint of step 2 as well
        ("trainer", 5, {}),  # the checkpoint of step 4 is of an epoch's last step
        ("trainer", 5, {"save_strategy": "epoch"}),
        ("grpo", 3, {}),
    ],
)
def test_a_resumed_run_has_the_losses_weights_and_plugin_states_of_one_never_stopped(
    kind: str, stopped_after: int, more: Mapping[str, Any], folder: Path
) -> None:
    whole, counter = folder / "whole", Counter()
    never_stopped = train(kind, whole, plugins={"counter": counter}, **more)
    stop_after_step(kind, folder, stopped_after, **more)
    resumed_counter = Counter()
    resumed = train(kind, folder, resume=True, plugins={"counter": resumed_counter}, **more)
    assert losses(resumed) == losses(never_stopped)
    assert digest(resumed) == digest(never_stopped)
    assert (resumed_counter.steps, resumed_counter.epochs) == (counter.steps, counter.epochs)
    assert not resumed_counter.restored, "hookline-checkpoint must not restore what the trainer has restored"


def test_numbers_of_steps_that_were_lost_are_replaced(folder: Path, recorded: Any) -> None:
    stop_after_step("trainer", folder, 5, logging_steps=1)
    resumed = train("trainer", folder, resume=True, plugins={"counter": Counter()}, logging_steps=1)
    assert recorded["train/loss"] == pytest.approx(losses(resumed))
    assert json.loads((folder / "run" / "status.json").read_text())[-1]["data"]["step"] == 6


def test_a_run_killed_with_sigkill_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    command = [sys.executable, tiny_trainers.__file__, "trainer", str(folder), "--end", "kill"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    resumed = train("trainer", folder, resume=True, plugins={})
    never_killed = make_trainer("trainer", folder / "never killed")
    never_killed.train()
    assert losses(resumed) == losses(never_killed)
    assert digest(resumed) == digest(never_killed)


def test_a_checkpoint_resumes_from_wherever_it_was_copied_to(folder: Path) -> None:
    stop_after_step("trainer", folder, 5)
    shutil.move(folder / "trainer" / "checkpoint-2", folder / "elsewhere")
    counter = Counter()
    train("trainer", folder, resume=str(folder / "elsewhere"), plugins={"counter": counter})
    assert counter.steps == 6


def test_a_checkpoint_that_was_saved_without_the_callback_is_refused(folder: Path) -> None:
    make_trainer("trainer", folder, max_steps=2).train()
    with pytest.raises(
        HooklineError, match="resumes at step 2 from a checkpoint that was saved without HooklineCallback"
    ):
        train("trainer", folder, resume=True, plugins={})


def test_a_checkpoint_in_the_middle_of_a_generations_steps_is_refused(folder: Path) -> None:
    stop_after_step("grpo", folder, 3, save_steps=1)
    with pytest.raises(HooklineError, match=r"middle of a generation's steps[\s\S]*save_steps be a multiple of 2"):
        train("grpo", folder, resume=True, plugins={}, save_steps=1)


@pytest.mark.parametrize(
    ("before", "then", "message"),
    [
        ({"save_only_model": True}, {}, "step 4 was saved with save_only_model=True, without the optimizer"),
        ({}, {"ignore_data_skip": True}, "ignore_data_skip=True would begin with its first rows again"),
    ],
)
def test_a_resume_that_would_be_another_run_is_refused(
    before: Mapping[str, Any], then: Mapping[str, Any], message: str, folder: Path
) -> None:
    stop_after_step("trainer", folder, 5, **before)
    with pytest.raises(HooklineError, match=message):
        train("trainer", folder, resume=True, plugins={}, **then)


class Unsaveable:
    @hookimpl
    def save_plugin_state(self) -> Mapping[str, Any]:
        return {"file": object()}


def test_a_state_that_no_checkpoint_holds_is_an_error_that_names_the_plugin(folder: Path) -> None:
    with pytest.raises(HooklineError, match="plugin 'unsaveable' returned from save_plugin_state"):
        train("trainer", folder, plugins={"unsaveable": Unsaveable()})


def test_arrays_come_back_from_json_as_they_were() -> None:
    arrays = {"a": np.arange(3.0), "b": [torch.ones(2, dtype=torch.bfloat16), None], "c": {"text": "x"}}
    packed = pack({"counters": {}, "plugins": {"one": arrays}})
    back = unpack(json.loads(json.dumps(packed)))["plugins"]["one"]
    assert isinstance(back["a"], np.ndarray)
    assert back["a"].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(back["b"][0], arrays["b"][0])
    assert back["c"] == {"text": "x"}
