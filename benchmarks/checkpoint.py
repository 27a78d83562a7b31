"""How long a checkpoint of 200 MB keeps the training thread, beside `torch.save` followed by an fsync.

    python benchmarks/checkpoint.py [--json FILE]

The state is a policy and Adam's two moments of it. Hookline's thread copies it into memory and goes on; `torch.save`
has it on disk when it returns. Both write to the file system of the current folder. They take turns, and each is judged
by its best; what a save takes until it is durable is shown besides, and is no part of the promise. It takes
half a minute.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from measuring import Table, describe_machine, format_seconds, json_option, report
from torch import nn

from hookline import PluginManager
from hookline_checkpoint import Checkpoint, Options
from hookline_checkpoint.reading import newest_valid
from hookline_hookspecs import TrainerState

MEGABYTES: Final = 200
ROUNDS: Final = 12
PROMISE: Final = 1 / 4


def build_state(run_dir: Path) -> TrainerState:
    """A policy of some twenty layers, and its optimizer after a step: 200 MB in all."""
    torch.manual_seed(0)
    width = int((MEGABYTES * 1e6 / 4 / 3 / 20) ** 0.5)
    policy = nn.Sequential(*(nn.Linear(width, width) for _ in range(20)))
    optimizer = torch.optim.Adam(policy.parameters())
    policy(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return TrainerState(run_dir=run_dir, policy=policy, optimizer=optimizer)


class Hookline:
    """The plugin as a run has it: its thread is kept by `on_epoch_end` alone."""

    def __init__(self, state: TrainerState) -> None:
        self.state = state
        self.plugins = PluginManager()
        self.plugin = Checkpoint(Options(keep_last=1, every=1), self.plugins.emit)
        self.plugins.register(self.plugin, "checkpoint")
        self.durable: list[float] = []
        self.plugins.emit.post_training_step(state=state, report_data={})  # a run takes steps before it saves

    def save(self) -> float:
        self.state.epoch += 10
        began = time.perf_counter()
        self.plugins.emit.on_epoch_end(state=self.state)
        stalled = time.perf_counter() - began
        while self.plugin.checkpoint_manager.is_writing:
            time.sleep(0.001)
        self.durable.append(time.perf_counter() - began)
        self.plugins.emit.post_training_step(state=self.state, report_data={})
        return stalled


def torch_save(state: TrainerState, folder: Path) -> Callable[[], float]:
    """What a training script does that wants its checkpoint to be there after a power cut."""

    def save() -> float:
        began = time.perf_counter()
        with (folder / "state.pt").open("wb") as file:
            torch.save({"policy": state.policy.state_dict(), "optimizer": state.optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - began

    return save


def check(state: TrainerState, folder: Path) -> int:
    """Both have saved the same numbers; returns how many bytes."""
    loaded, _ = newest_valid(folder / "checkpoints")
    assert loaded is not None
    assert loaded.contents.epoch == state.epoch, "the last epoch was not saved"
    plain = torch.load(folder / "state.pt", weights_only=True)
    for name, value in state.policy.state_dict().items():
        assert torch.equal(value, loaded.contents.policy[name])
        assert torch.equal(value, plain["policy"][name])
    return loaded.size_bytes


def stall(folder: Path) -> Table:
    state = build_state(folder)
    hookline = Hookline(state)
    baseline = torch_save(state, folder)
    time.sleep(2)  # an epoch
    first = hookline.save()
    baseline()
    stalls: list[float] = []
    plain: list[float] = []
    for _ in range(ROUNDS):
        stalls.append(hookline.save())
        plain.append(baseline())
    size = check(state, folder)
    ratio = min(stalls) / min(plain)
    kept = "" if ratio <= PROMISE else ", promise not kept"
    table = Table(
        f"The training thread is kept by a checkpoint of {size / 1e6:.0f} MB",
        "at most 1/4 of torch.save + fsync",
        ["", "best", "median", "of torch.save + fsync"],
    )
    rows = {
        "hookline, thread kept": (stalls, f"{ratio:.3f}{kept}"),
        "hookline, until durable": (hookline.durable[1:], f"{min(hookline.durable[1:]) / min(plain):.2f}"),
        "torch.save + fsync": (plain, "1"),
    }
    for name, (seconds, of_plain) in rows.items():
        best, median = min(seconds), statistics.median(seconds)
        table.add(
            [name, format_seconds(best), format_seconds(median), of_plain], name=name, seconds=best, median=median
        )
    table.remarks.append(
        f"the first save of the run, with memory that is used for the first time: {format_seconds(first)}"
    )
    return table


if __name__ == "__main__":
    json_file = json_option(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        report(describe_machine("torch", "safetensors", "hookline-checkpoint"), [stall(Path(folder))], json_file)
