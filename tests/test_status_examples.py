"""The example scripts of the document on loggers and hooks run, and their servers are told of the whole training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, cwd: Path) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=500, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_custom_loggers_and_hooks(tmp_path: Path) -> None:
    printed = run("custom_loggers_and_hooks.py", tmp_path)
    assert "training Transformer for 32 steps" in printed
    assert "half way, in epoch 1" in printed
    assert printed.count("validation loss") == 2
    assert "received 34 statuses, the last of step 32" in printed
    events = dict(reversed(line.split(" x ")) for line in printed.splitlines() if " x " in line)
    assert int(events.pop("validation_heartbeat")) >= 1
    assert {phase: int(count) for phase, count in events.items() if "step" not in phase} == {
        "pre_training": 1,
        "training_heartbeat": 3,
        "pre_validation": 2,
        "post_validation": 2,
        "post_training": 1,
    }


def test_tao_sft_example(tmp_path: Path) -> None:
    printed = run("tao_sft_example.py", tmp_path)
    by_http, by_file = printed.split("and runs/tao-sft-example/status.json has:\n")
    assert by_http.splitlines()[1].split()[1:] == ["pre_training", "STARTED"]
    assert by_http.splitlines()[-1].split()[1:] == ["post_training", "SUCCESS"]
    assert [line.split()[1] for line in by_file.splitlines()] == ["STARTED", *["RUNNING"] * 4, "SUCCESS"]
