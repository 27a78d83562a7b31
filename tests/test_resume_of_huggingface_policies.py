"""Supervised runs of a Hugging Face model, killed with SIGKILL and resumed: they end as runs that were never killed."""

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
pytest.importorskip("transformers")
pytest.importorskip("peft")

from hookline.testing.tiny_models import tiny_model

EPOCHS = 12

TASK = """
from hookline.training import LearnerConfig, LoraConfig, SupervisedConfig, Trainer, task

EXAMPLES = [{{"tokens": [4 + (i * k) % 200 for k in range(1, 6 + i % 7)]}} for i in range(1, 25)]


@task(epochs={epochs}, policy="base", supervised=SupervisedConfig(batch_size=4), {fields})
def examples(config, plugins):
    return Trainer(config, dataset=EXAMPLES, plugins=plugins)
"""

RUNS = {
    "all-weights": "",
    "adapters-bf16": 'lora=LoraConfig(r=2, dropout=0.2), learner=LearnerConfig(precision="bf16")',
}


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hookline", "train", "run.py:examples", "--run-dir", str(folder)]
    options = ["-o", "checkpoint.every=1", *more]
    return subprocess.Popen(
        [*command, *options], cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(run: subprocess.Popen[str]) -> str:
    output, _ = run.communicate(timeout=400)
    assert run.returncode == 0, output
    return output


def newest(folder: Path) -> int:
    return max((int(path.name[6:12]) for path in folder.glob("checkpoints/epoch-*")), default=-1)


def outcome(folder: Path) -> tuple[bytes, bytes, Any]:
    path = folder / "checkpoints" / f"epoch-{EPOCHS - 1:06d}"
    state = json.loads((path / "state.json").read_bytes())
    return (
        (path / "policy.safetensors").read_bytes(),
        (path / "optimizer.safetensors").read_bytes(),
        {name: state[name] for name in ("counters", "policy", "optimizer")} | state["plugins"]["trainer"],
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_and_resumed_ends_bit_for_bit_as_one_that_was_not(name: str, tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", attention_dropout=0.1)
    before = (base / "model.safetensors").read_bytes()
    (tmp_path / "run.py").write_text(TASK.format(epochs=EPOCHS, fields=RUNS[name]))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(whole))
    run = start(killed)
    while newest(killed) < 4 and run.poll() is None:
        time.sleep(0.002)
    time.sleep(random.Random(name).uniform(0, 0.05))
    run.kill()
    run.communicate()
    assert 4 <= newest(killed) < EPOCHS - 1, "the run was through before it was killed"
    assert "resumed from" in finish(start(killed, "--resume"))
    assert outcome(killed) == outcome(whole)
    assert (base / "model.safetensors").read_bytes() == before
