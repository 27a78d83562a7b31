"""Tiny modules and data for a real `trainer.fit`, in the tests' own process or as a script in a child.

python tiny_fit.py FOLDER [--epochs N] [--ckpt FILE] [--kill-at STEP] [--signal-at STEP] [--devices N]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookline import hookimpl
from hookline_hookspecs import TrainerState
from hookline_lightning import HooklineCallback


class Automatic(LightningModule):
    """A regression with dropout, so that its losses depend on the random generators."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 8, "password": "not to be written"})
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("mse", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log_dict({"val_loss": loss, "val_rmse": loss.sqrt()})
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Manual(Automatic):
    """Steps by itself, and zeroes the gradients after the step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        optimizer = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        return loss


class TwoOptimizers(Automatic):
    """One optimizer for each layer, which step one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.layers[index].parameters(), lr=0.01) for index in (0, 3)]


class Losses:
    """Keeps the loss of every step, and remembers them over a resume."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    @hookimpl
    def post_training_step(self, report_data: dict[str, Any]) -> None:
        if "train/loss" in report_data:
            self.losses.append(report_data["train/loss"])

    @hookimpl
    def save_plugin_state(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    @hookimpl
    def load_plugin_state(self, saved: dict[str, dict[str, Any]]) -> None:
        self.losses = list(saved.get("losses", {"losses": []})["losses"])


class KillAt:
    """Kills this process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    @hookimpl
    def post_training_step(self, state: TrainerState) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Stopper:
    """Ends the run after two epochs, from rank 0."""

    def __init__(self) -> None:
        self.is_driver_told = False
        self.steps_when_stopped = 0
        self.stop_reason: str | None = None

    @hookimpl(scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self.is_driver_told = True
        if state.epoch == 1:
            state.stop_reason = "two epochs are enough"

    @hookimpl
    def on_training_complete(self, state: TrainerState) -> None:
        self.steps_when_stopped, self.stop_reason = state.step, state.stop_reason


def loaders(*, rows: int = 24, shuffle: bool = True) -> dict[str, DataLoader[Any]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 4, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return {
        "train_dataloaders": DataLoader(data, batch_size=4, shuffle=shuffle),
        "val_dataloaders": DataLoader(data, batch_size=12),
    }


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    """A quiet trainer on the CPU."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    own = {
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "max_epochs": 2,
        "enable_checkpointing": False,
    }
    return Trainer(callbacks=list(callbacks), **{**quiet, **own, **options})


def after_epochs(folder: Path) -> ModelCheckpoint:
    """Saves a checkpoint after every epoch, and keeps all."""
    return ModelCheckpoint(folder / "ckpt", save_top_k=-1, save_on_train_epoch_end=True)


def fit_on_ranks(folder: Path) -> None:
    """Train to the end, train until rank 0 stops, and resume that, all on two ranks."""

    def fit(name: str, ckpt_path: Path | None = None, **plugins: object) -> Trainer:
        own = trainer(
            folder,
            HooklineCallback(folder / name, plugins=plugins),
            after_epochs(folder / name),
            max_epochs=4,
            devices=2,
            strategy="ddp",
            enable_checkpointing=True,
        )
        seed_everything(3, verbose=False)  # of the data's order, which is the same on all ranks and in every start
        torch.manual_seed(own.global_rank + 10 * (ckpt_path is not None))
        own.fit(Automatic(), **loaders(), ckpt_path=ckpt_path)
        return own

    whole, stopper, resumed = Losses(), Stopper(), Losses()
    fit("whole", losses=whole)
    fit("stopped", stopper=stopper)
    (path,) = (folder / "stopped" / "ckpt").glob("epoch=1-*.ckpt")
    rank = fit("stopped", path, resumed=resumed).global_rank
    seen = {"whole": whole.losses, "resumed": resumed.losses, **vars(stopper)}
    (folder / f"rank-{rank}.json").write_text(json.dumps(seen))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--ranks", action="store_true")
    options = parser.parse_args()
    if options.ranks:
        fit_on_ranks(options.folder)
        return
    seed_everything(3, verbose=False)
    plugins = {"losses": Losses(), "kill": KillAt(options.kill_at)}
    callback = HooklineCallback(options.folder / "run", plugins=plugins)
    own = trainer(options.folder, callback, after_epochs(options.folder), max_epochs=4, enable_checkpointing=True)
    own.fit(Automatic(), **loaders())


if __name__ == "__main__":
    main()
