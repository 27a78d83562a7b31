"""Two ranks under torchrun, with DDP over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_trainers import Recorded


def test_two_ranks_train_as_one_run_that_stops_and_resumes_on_both(folder: Path) -> None:
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    result = subprocess.run(
        [*command, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    first, second = (json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert (first["epochs"], second["epochs"]) == ([0, 1], [])
    assert first["gradients"] == second["gradients"] == 6
    assert first["stopped_at"] == second["stopped_at"] == 3
    assert first["is_same"]
    assert second["is_same"]
    assert first["digest"] == second["digest"]
    recorded = Recorded(folder / "whole" / "run")["train/loss"]
    assert recorded == pytest.approx({int(step): loss for step, loss in first["losses"].items()})
