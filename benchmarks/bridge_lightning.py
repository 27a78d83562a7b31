"""What the callback and the five plugins cost a Lightning fit whose steps take about 20 ms.

    python benchmarks/bridge_lightning.py [--steps N] [--rounds N]

Fits with and without take turns. A step computes on one core, with the GIL held and released as training does, and all
that happens between the first and the last step counts. Each is judged by its best fit.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from hookline_lightning import HooklineCallback

__all__ = ["seconds_per_step"]

STEP_SECONDS: Final = 0.02
WARM_UP: Final = 5


class SlowModule(LightningModule):
    """A small regression that logs two numbers, and computes besides until its step is long enough."""

    def __init__(self, products: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)
        self.products = products

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        del batch_idx
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log_dict({"loss": loss, "rmse": loss.detach().sqrt()})
        multiply(self.products)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def multiply(times: int) -> None:
    matrix = torch.ones(128, 128)
    for _ in range(times):
        matrix @ matrix


class Clock(Callback):
    """Notes when each batch begins."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        del trainer, pl_module, batch, batch_idx
        self.times.append(time.perf_counter())


def seconds_per_step(*, steps: int = 200, rounds: int = 3) -> tuple[float, float]:
    """The mean time of one step without and with Hookline, at best over the rounds."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    multiply(1000)
    products = round(1000 * STEP_SECONDS / (time.perf_counter() - began))
    os.environ["HOOKLINE_DISABLE_LIGHTNING"] = "1"  # the callback is given by hand, where it is wanted
    os.environ["HOOKLINE_OPTIONS"] = "metrics.progress=off"
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    best = [float("inf"), float("inf")]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            variants: list[list[Callback]] = [[], [HooklineCallback(Path(folder, str(number)))]]
            for index, callbacks in enumerate(variants):
                best[index] = min(best[index], _fit(Path(folder), steps, products, callbacks))
    return best[0], best[1]


def _fit(folder: Path, steps: int, products: int, callbacks: list[Callback]) -> float:
    clock = Clock()
    data = TensorDataset(torch.randn(steps * 2, 64), torch.randn(steps * 2, 1))
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[clock, *callbacks],
        default_root_dir=folder,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(SlowModule(products), DataLoader(data, batch_size=2))
    times = clock.times[WARM_UP:]
    return (times[-1] - times[0]) / (len(times) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    without, with_plugins = seconds_per_step(steps=options.steps, rounds=options.rounds)
    print(
        f"lightning: {without * 1e3:.2f} ms a step, {with_plugins * 1e3:.2f} ms with the callback and its plugins: "
        f"{with_plugins / without - 1:+.1%} (promised: at most +3.0%)"
    )


if __name__ == "__main__":
    main()
