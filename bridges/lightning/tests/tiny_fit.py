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
        self.losses = list(saved["losses"]["losses"])


class SignalAt:
    """Sends this process a signal after a step."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    @hookimpl
    def post_training_step(self, state: TrainerState) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), self.number)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ckpt", type=Path)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--signal-at", type=int)
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    seed_everything(3, verbose=False)
    losses = Losses()
    plugins: dict[str, object] = {"losses": losses}
    if options.kill_at is not None:
        plugins["kill"] = SignalAt(signal.SIGKILL, options.kill_at)
    if options.signal_at is not None:
        plugins["signal"] = SignalAt(signal.SIGTERM, options.signal_at)
    fit = trainer(
        options.folder,
        HooklineCallback(options.folder / "run", plugins=plugins),
        after_epochs(options.folder),
        max_epochs=options.epochs,
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        enable_checkpointing=True,
    )
    fit.fit(Automatic(), **loaders(), ckpt_path=options.ckpt)
    (options.folder / f"losses-{fit.global_rank}.json").write_text(json.dumps(losses.losses))


if __name__ == "__main__":
    main()
