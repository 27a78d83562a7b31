"""A fit that is resumed from Lightning's own checkpoint goes on as if it had never stopped."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import BatchSizeFinder, ModelCheckpoint
from torch.utils.data import DataLoader

from hookline import hookimpl
from hookline.session import RunFolderError
from hookline_hookspecs import TrainerState
from hookline_lightning import HooklineCallback

SCRIPT = Path(__file__).with_name("tiny_fit.py")


def losses_of_fit(tiny: ModuleType, folder: Path, checkpoint: ModelCheckpoint, epochs: int, **options: Any) -> Any:
    """Train from the start or from `ckpt_path`; returns the plugin that saw the losses."""
    seed_everything(11 if "ckpt_path" in options else 3, verbose=False)  # a new process has generators of its own
    losses = tiny.Losses()
    callback = HooklineCallback(folder / "run", plugins={"losses": losses})
    trainer = tiny.trainer(folder, callback, checkpoint, max_epochs=epochs, enable_checkpointing=True)
    trainer.fit(tiny.Automatic(), **tiny.loaders(), **options)
    return losses


@pytest.mark.parametrize("at_epoch_end", [True, False], ids=["saved after an epoch", "saved after a validation"])
def test_a_resumed_fit_has_the_losses_of_one_never_stopped(
    tiny: ModuleType, tmp_path: Path, at_epoch_end: bool
) -> None:
    def checkpoint(name: str) -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path / name, "{epoch}", save_top_k=-1, save_on_train_epoch_end=at_epoch_end)

    whole = losses_of_fit(tiny, tmp_path / "a", checkpoint("whole"), epochs=4)
    losses_of_fit(tiny, tmp_path / "b", checkpoint("half"), epochs=2)
    resumed = losses_of_fit(
        tiny, tmp_path / "b", checkpoint("rest"), epochs=4, ckpt_path=tmp_path / "half" / "epoch=1.ckpt"
    )
    assert len(whole.losses) == 24
    assert resumed.losses == whole.losses


def test_a_fit_that_was_saved_in_the_middle_of_an_epoch_goes_on_at_that_step(tiny: ModuleType, tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "ckpt", "{step}", every_n_train_steps=4, save_top_k=-1)
    losses_of_fit(tiny, tmp_path, checkpoint, epochs=2)
    resumed = losses_of_fit(tiny, tmp_path, checkpoint, epochs=2, ckpt_path=tmp_path / "ckpt" / "step=8.ckpt")
    assert len(resumed.losses) == 12
    assert steps(tmp_path / "run") == list(range(1, 13))


def numbers(run_dir: Path, name: str) -> list[tuple[int, float]]:
    """A metric of a run as it counts: what a resumed run has recorded again is there once."""
    with closing(sqlite3.connect(run_dir / "stats.sqlite")) as database:
        rows = database.execute("SELECT step, value FROM metrics WHERE name = ? ORDER BY step", (name,))
        return list(rows.fetchall())


def steps(run_dir: Path) -> list[int]:
    return [step for step, _ in numbers(run_dir, "train/loss")]


def test_a_plugin_gets_its_arrays_back_as_they_were(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKLINE_DISABLE", "checkpoint", prepend=",")  # whose own checkpoints hold JSON

    class Keeper:
        def __init__(self) -> None:
            self.taken: Any = None

        @hookimpl
        def save_plugin_state(self) -> dict[str, Any]:
            return {"array": np.arange(3), "tensor": torch.ones(2), "nested": {"list": [1, "a", None]}}

        @hookimpl
        def load_plugin_state(self, saved: dict[str, Any]) -> None:
            self.taken = saved["keeper"]

    keeper, path = Keeper(), tmp_path / "at-2.ckpt"
    trainer = tiny.trainer(tmp_path, HooklineCallback(plugins={"keeper": keeper}), max_epochs=1)
    trainer.fit(tiny.Automatic(), **tiny.loaders())
    trainer.save_checkpoint(path)  # after the fit, with what its last moment left
    again = tiny.trainer(tmp_path, HooklineCallback(plugins={"keeper": keeper}), max_epochs=2)
    again.fit(tiny.Automatic(), **tiny.loaders(), ckpt_path=path)
    assert keeper.taken["array"].tolist() == [0, 1, 2]
    assert isinstance(keeper.taken["array"], np.ndarray)
    assert torch.equal(keeper.taken["tensor"], torch.ones(2))
    assert keeper.taken["nested"] == {"list": [1, "a", None]}


def test_a_resumed_fit_goes_on_in_the_folder_that_its_checkpoint_names(tiny: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "first.ckpt"
    first = tiny.trainer(tmp_path, max_epochs=1)  # with the callback that is installed
    first.fit(tiny.Automatic(), **tiny.loaders())
    first.save_checkpoint(path)
    tiny.trainer(tmp_path).fit(tiny.Automatic(), **tiny.loaders(), ckpt_path=path)
    tiny.trainer(tmp_path).fit(tiny.Automatic(), **tiny.loaders())
    assert sorted(folder.name for folder in (tmp_path / "runs").iterdir()) == ["lightning-0", "lightning-1"]
    assert steps(tmp_path / "runs" / "lightning-0") == list(range(1, 13))


def test_a_second_fit_of_one_trainer_goes_on_with_its_run(tiny: ModuleType, tmp_path: Path) -> None:
    losses = tiny.Losses()
    trainer = tiny.trainer(tmp_path, HooklineCallback(tmp_path / "run", plugins={"losses": losses}), max_epochs=1)
    module = tiny.Automatic()
    trainer.fit(module, **tiny.loaders())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, **tiny.loaders())
    assert len(losses.losses) == 12
    assert steps(tmp_path / "run") == list(range(1, 13))


def test_a_fit_after_one_that_failed_before_its_first_step_goes_on_with_its_run(
    tiny: ModuleType, tmp_path: Path
) -> None:
    class Broken(tiny.Automatic):  # type: ignore[name-defined, misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ValueError("a typing error")

    trainer = tiny.trainer(tmp_path)
    with pytest.raises(ValueError, match="a typing error"):
        trainer.fit(Broken(), **tiny.loaders())
    trainer.fit(tiny.Automatic(), **tiny.loaders())
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["lightning-0"]
    assert steps(tmp_path / "runs" / "lightning-0") == list(range(1, 13))


def test_a_fit_that_searches_for_a_batch_size_first_is_a_new_run(tiny: ModuleType, tmp_path: Path) -> None:
    class Sized(tiny.Automatic):  # type: ignore[name-defined, misc]
        batch_size = 2

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(tiny.loaders()["train_dataloaders"].dataset, batch_size=self.batch_size)

    class Begin:
        @hookimpl
        def on_new_training_run(self, state: TrainerState) -> None:
            self.is_resumed = state.resume

    begin = Begin()

    def fit() -> None:
        search = BatchSizeFinder(steps_per_trial=1, max_trials=1)
        trainer = tiny.trainer(tmp_path, HooklineCallback(tmp_path / "run", plugins={"begin": begin}), search)
        trainer.fit(Sized(), val_dataloaders=tiny.loaders()["val_dataloaders"])

    fit()
    assert not begin.is_resumed
    with pytest.raises(RunFolderError, match="holds a run already: go on with it by"):
        fit()


def test_a_checkpoint_that_was_saved_without_hookline_is_no_way_to_go_on_with_a_run(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run_dir = tmp_path / "plain.ckpt", tmp_path / "run"
    with monkeypatch.context() as context:
        context.setenv("HOOKLINE_DISABLE_LIGHTNING", "1")
        plain = tiny.trainer(tmp_path, max_epochs=1)
        plain.fit(tiny.Automatic(), **tiny.loaders())
        plain.save_checkpoint(path)
    tiny.trainer(tmp_path, HooklineCallback(run_dir), max_epochs=1).fit(tiny.Automatic(), **tiny.loaders())
    before = steps(run_dir)
    expected = r"run cannot go on from .*plain.ckpt: that checkpoint was saved without HooklineCallback"
    with pytest.raises(RunFolderError, match=expected):
        tiny.trainer(tmp_path, HooklineCallback(run_dir)).fit(tiny.Automatic(), **tiny.loaders(), ckpt_path=path)
    assert steps(run_dir) == before


def test_a_new_fit_in_the_folder_of_a_run_is_refused(tiny: ModuleType, tmp_path: Path) -> None:
    for is_first in (True, False):
        trainer = tiny.trainer(tmp_path, HooklineCallback(tmp_path / "run"), max_epochs=1)
        if is_first:
            trainer.fit(tiny.Automatic(), **tiny.loaders())
    with pytest.raises(RunFolderError, match=r"holds a run already: go on with it by trainer\.fit\(model, ckpt_path="):
        trainer.fit(tiny.Automatic(), **tiny.loaders())


def test_a_run_that_begins_with_a_plain_checkpoint_counts_as_lightning_does(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plain.ckpt"
    with monkeypatch.context() as context:
        context.setenv("HOOKLINE_DISABLE_LIGHTNING", "1")
        plain = tiny.trainer(tmp_path, max_epochs=1)
        plain.fit(tiny.Automatic(), **tiny.loaders())
        plain.save_checkpoint(path)
    tiny.trainer(tmp_path, HooklineCallback(tmp_path / "run")).fit(tiny.Automatic(), **tiny.loaders(), ckpt_path=path)
    assert steps(tmp_path / "run") == list(range(7, 13))


def test_a_killed_fit_resumes_with_the_losses_of_one_never_killed(tiny: ModuleType, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, str(SCRIPT), str(killed), "--kill-at", "15"]
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == -signal.SIGKILL
    (path,) = (killed / "ckpt").glob("epoch=1-*.ckpt")
    resumed = losses_of_fit(tiny, killed, tiny.after_epochs(killed), epochs=4, ckpt_path=path)
    never_killed = losses_of_fit(tiny, whole, tiny.after_epochs(whole), epochs=4)
    assert len(never_killed.losses) == 24
    assert resumed.losses == never_killed.losses
    for name in ("train/loss", "mse_epoch", "val_loss"):
        assert numbers(killed / "run", name) == numbers(whole / "run", name)
    assert [step for step, _ in numbers(killed / "run", "mse_epoch")] == [6, 12, 18, 24]
