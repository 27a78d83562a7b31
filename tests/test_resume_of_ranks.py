"""Two ranks under torchrun: rank 0 writes, each rank goes on where it stood, and all from the same checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json, os
from pathlib import Path
import torch
from torch import nn
from hookline import hookimpl
from hookline.training import LearnerConfig, SupervisedConfig, Trainer, TrainerConfig
from hookline_checkpoint import CheckpointHook, CheckpointManager

EXAMPLES = [{"tokens": [2 + (i * k) % 7 for k in range(3 + i % 3)]} for i in range(1, 13)]

class WithDropout(nn.Module):
    # Each rank draws from a generator of its own as it trains.
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.embedding = nn.Embedding.from_pretrained(torch.randn(10, 12, generator=generator), freeze=False)
        torch.manual_seed(6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(2))
        self.dropout = nn.Dropout(0.3)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.dropout(x) @ self.embedding.weight.T

class Death:
    @hookimpl
    def on_epoch_start(self, state):
        if state.epoch == 4:
            os._exit(9)

rank = os.environ["RANK"]

def train(folder, resume=False, dies=False):
    supervised = SupervisedConfig(batch_size=4)
    learner = LearnerConfig(data_parallel=os.environ["KIND"])
    config = TrainerConfig(epochs=5, run_dir=Path(folder), resume=resume, supervised=supervised, learner=learner)
    trainer = Trainer(config, policy=WithDropout(), dataset=EXAMPLES)
    trainer.add_hook(CheckpointHook(CheckpointManager(keep_last=9), checkpoint_interval=1, wandb_checkpoint_interval=0))
    if dies:
        trainer.add_hook(Death())
    trainer.train()
    weights = {name: tensor.tolist() for name, tensor in trainer.policy.state_dict().items()}
    found = {"weights": weights, "step": trainer.state.step}
    Path(f"{folder}-on-rank-{rank}.json").write_text(json.dumps(found))

if os.environ["PART"] == "first":
    train("whole" if rank == "0" else "elsewhere")
    train("killed", dies=True)
elif os.environ["PART"] == "different folders":
    train("killed" if rank == "0" else "other", resume=True)
else:
    train("killed", resume=True)
"""

ABORTED_AT_EXIT = "terminate called without an active exception"
"""Seen once: a rank that is done aborts while its interpreter shuts down."""


def run(folder: Path, part: str, kind: str, *, fails: bool = False) -> str:
    (folder / "program.py").write_text(PROGRAM)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    result = subprocess.run(
        [sys.executable, *torchrun],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PART": part, "KIND": kind},
    )
    output = result.stdout + result.stderr
    assert (result.returncode != 0) is fails or ABORTED_AT_EXIT in output, output
    return output


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ranks_with_different_folders_are_told(tmp_path: Path, kind: str) -> None:
    shutil.copytree(tmp_path / "killed", tmp_path / "other")
    newest = max((tmp_path / "other" / "checkpoints").glob("epoch-*"))
    (newest / "manifest.json").unlink()
    output = run(tmp_path, "different folders", kind, fails=True)
    assert "the ranks do not start at the same point of the run (rank 0: epoch " in output
    assert "Use the same folder for all ranks" in output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_ranks_resume_together_or_not_at_all(tmp_path: Path, kind: str) -> None:
    run(tmp_path, "first", kind, fails=True)
    assert names(tmp_path / "whole" / "checkpoints") == [f"epoch-00000{epoch}" for epoch in range(5)]
    assert not (tmp_path / "elsewhere").exists(), "rank 1 has written something"
    if kind == "ddp":  # the ranks compare before either kind has a part in it
        ranks_with_different_folders_are_told(tmp_path, kind)
    run(tmp_path, "same folder", kind)
    outcomes = [
        json.loads((tmp_path / f"{name}.json").read_text())
        for name in ("whole-on-rank-0", "elsewhere-on-rank-1", "killed-on-rank-0", "killed-on-rank-1")
    ]
    assert outcomes[0]["step"] == 15
    assert outcomes.count(outcomes[0]) == 4
    assert outcomes[0]["weights"]["unused"] == [1.0, 1.0, 1.0], "a parameter without a gradient has moved"
