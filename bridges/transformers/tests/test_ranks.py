"""Two ranks under torchrun, with DDP over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
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
    # FSDP2: what rank 0 saves is the whole model, as the trainer's own checkpoint has it, and the optimizer's state.
    sharded = folder / "sharded"
    saved = safetensors.torch.load_file(sharded / "run" / "checkpoints" / "epoch-000000" / "policy.safetensors")
    theirs = safetensors.torch.load_file(sharded / "trainer" / "checkpoint-4" / "model.safetensors")
    assert saved.keys() == theirs.keys()
    assert all(torch.equal(saved[name], theirs[name]) for name in saved)
    moments = safetensors.torch.load_file(sharded / "run" / "checkpoints" / "epoch-000000" / "optimizer.safetensors")
    assert tuple(moments["state.0.exp_avg"].shape) == tuple(theirs["model.embed_tokens.weight"].shape)
