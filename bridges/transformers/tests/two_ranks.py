"""What two ranks do in test_ranks.py: torchrun --nproc-per-node 2 two_ranks.py FOLDER; prints what each rank found."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tiny_trainers import EndAfterStep, digest, losses, make_trainer, tiny_model
from torch.distributed.tensor import DTensor
from transformers import LlamaForCausalLM
from transformers.distributed import DistributedConfig

from hookline import hookimpl
from hookline_hookspecs import TrainerState
from hookline_transformers import HooklineCallback, hookline_run

RANK = int(os.environ["RANK"])


class Listener:
    """Notes which ranks hear what is for the driver, and has training stop from rank 0 if asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.epochs: list[int] = []
        self.gradients = 0
        self._stop_after = stop_after

    @hookimpl(scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self.epochs.append(state.epoch)

    @hookimpl
    def on_mb_end(self, state: TrainerState) -> None:
        self.gradients += any(own.grad is not None for own in state.policy.parameters())

    @hookimpl(scope="driver")
    def post_training_step(self, state: TrainerState) -> None:
        if state.step == self._stop_after:
            state.stop_reason = "enough"


def train(folder: Path, *, resume: bool = False, **plugins: object) -> Any:
    callback = HooklineCallback(folder / "run", plugins=plugins)
    trainer = make_trainer("trainer", folder, callback, per_device_train_batch_size=2)
    with hookline_run(trainer):
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def train_sharded(folder: Path) -> None:
    """With FSDP2, as transformers has it: each rank holds a part of the weights from the time they are loaded."""
    if RANK == 0:
        tiny_model().save_pretrained(folder / "model")
    dist.barrier()
    model = LlamaForCausalLM.from_pretrained(folder / "model", distributed_config=DistributedConfig(fsdp_size=2))
    assert any(isinstance(own, DTensor) for own in model.parameters())
    more = {"per_device_train_batch_size": 2, "save_only_model": True, "max_steps": 4}
    trainer = make_trainer("trainer", folder, HooklineCallback(folder / "run"), model=model, **more)
    with hookline_run(trainer):
        trainer.train()


def main(folder: Path) -> None:
    listener = Listener()
    whole = train(folder / "whole", listener=listener)
    stopped = train(folder / "told to stop", listener=Listener(stop_after=3))
    with contextlib.suppress(ZeroDivisionError):
        train(folder / "failed", ender=EndAfterStep("raise", 3))
    resumed = train(folder / "failed", resume=True)
    found = {
        "epochs": listener.epochs,
        "gradients": listener.gradients,
        "stopped_at": stopped.state.global_step,
        "losses": losses(whole),
        "is_same": (losses(resumed), digest(resumed)) == (losses(whole), digest(whole)),
        "digest": digest(whole),
    }
    train_sharded(folder / "sharded")
    (folder / f"rank-{RANK}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
