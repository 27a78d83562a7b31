"""`hookline train`, killed with SIGKILL and resumed, as often as it takes: it ends as the run that was never killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

TASKS = Path(__file__).with_name("resumed_tasks.py")
WARM_STARTED = f"{TASKS}:warm_started"
TURNS = f"{TASKS}:turns"
HUGGING_FACE = [f"{TASKS}:{name}" for name in ("transformers_bf16", "jax_lora_bf16", "sft_lora_bf16")]
EPOCHS = {"cartpole": 10, WARM_STARTED: 16, TURNS: 12, **dict.fromkeys(HUGGING_FACE, 10)}

KILLS = {"cartpole": (-1, 4), WARM_STARTED: (1, 7), TURNS: (5,), **dict.fromkeys(HUGGING_FACE, (3,))}
"""The checkpoint after which each life ends; -1 for a life that ends before there is any. `warm_started` is killed once
within its warm start of four epochs, and once in the phase after it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Hugging Face model that tasks train."""
    pytest.importorskip("peft", reason='pip install "hookline[hf]"')
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, TASKS, folder], check=True)
    return folder


def start(task: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hookline", "train", task, "--run-dir", str(folder), "--epochs", str(EPOCHS[task])]
    options = ["-o", "checkpoint.every=1", *more]
    return subprocess.Popen(
        [*command, *options], cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(run: subprocess.Popen[str]) -> str:
    output, _ = run.communicate(timeout=400)
    assert run.returncode == 0, output
    return output


def newest(folder: Path) -> int:
    """The epoch of the newest checkpoint; -1 when the run has begun and saved nothing yet, -2 when it has not begun."""
    if not (folder / "config.json").exists():
        return -2
    return max((int(path.name[6:12]) for path in folder.glob("checkpoints/epoch-*")), default=-1)


def kill_after(run: subprocess.Popen[str], folder: Path, epoch: int, delay: float) -> None:
    """Kill a run some time after it has saved an epoch."""
    while newest(folder) < epoch and run.poll() is None:
        time.sleep(0.002)
    time.sleep(delay)
    run.kill()
    run.communicate()


def outcome(folder: Path, epochs: int) -> tuple[bytes, bytes, Any]:
    """Weights, moments of the optimizer, and where counters, generators, data and environments stand."""
    path = folder / "checkpoints" / f"epoch-{epochs - 1:06d}"
    state = json.loads((path / "state.json").read_bytes())
    return (
        (path / "policy.safetensors").read_bytes(),
        (path / "optimizer.safetensors").read_bytes(),
        {name: state[name] for name in ("counters", "policy", "optimizer", "metrics")} | state["plugins"]["trainer"],
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("task", EPOCHS, ids=lambda task: task.rpartition(":")[2])
def test_a_run_killed_and_resumed_ends_bit_for_bit_as_one_that_was_not(
    task: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    delays = random.Random(task.rpartition(":")[2])
    base = b""
    if task in HUGGING_FACE:
        (tmp_path / "model").symlink_to(request.getfixturevalue("model"))
        base = (tmp_path / "model" / "model.safetensors").read_bytes()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(task, whole))
    for epoch in KILLS[task]:
        resume = ["--resume"] if killed.exists() else []
        kill_after(start(task, killed, *resume), killed, epoch, delays.uniform(0, 0.05))
    assert KILLS[task][-1] <= newest(killed) < EPOCHS[task] - 1, "the run was through before it was killed"
    assert "resumed from" in finish(start(task, killed, "--resume"))
    assert outcome(killed, EPOCHS[task]) == outcome(whole, EPOCHS[task])
    assert not base or (tmp_path / "model" / "model.safetensors").read_bytes() == base
