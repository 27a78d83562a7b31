"""The moments of a fit, as plugins see them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hookline import hookimpl
from hookline.testing import check_emitter
from hookline_hookspecs import TrainerState
from hookline_lightning import HooklineCallback


class Watcher:
    """Keeps what plugins are told."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.validations: list[dict[str, Any]] = []
        self.validation_steps: list[dict[str, Any]] = []
        self.gradients: list[list[bool]] = []
        self.state = TrainerState()

    @hookimpl
    def on_new_training_run(self, state: TrainerState) -> None:
        self.state = state

    @hookimpl
    def on_mb_end(self, state: TrainerState) -> None:
        parameters = state.policy.parameters()
        self.gradients.append([own.grad is not None and bool(own.grad.any()) for own in parameters])

    @hookimpl
    def post_training_step(self, report_data: dict[str, Any]) -> None:
        self.reports.append(dict(report_data))

    @hookimpl
    def log_metrics(self, report_data: dict[str, Any], step: int) -> None:
        self.logged.append((step, dict(report_data)))

    @hookimpl
    def post_validation(self, report_data: dict[str, Any]) -> None:
        self.validations.append(dict(report_data))

    @hookimpl
    def post_validation_step(self, report_data: dict[str, Any]) -> None:
        self.validation_steps.append(dict(report_data))


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("Automatic", {}),
        ("Automatic", {"accumulate_grad_batches": 4}),
        ("Automatic", {"val_check_interval": 2}),
        ("Manual", {}),
        ("TwoOptimizers", {}),
    ],
    ids=["automatic", "accumulation", "validation in the middle", "manual", "two optimizers"],
)
def test_a_fit_keeps_the_promises_of_the_event_contract(
    tiny: ModuleType, tmp_path: Path, module: str, options: dict[str, Any]
) -> None:
    def run(plugin: object) -> None:
        callback = HooklineCallback(plugins={"recorder": plugin})
        tiny.trainer(tmp_path, callback, **options).fit(getattr(tiny, module)(), **tiny.loaders())

    check_emitter(run)


def test_steps_are_the_steps_of_the_optimizer(tiny: ModuleType, tmp_path: Path, watcher: Watcher) -> None:
    callback = HooklineCallback(plugins={"watcher": watcher})
    trainer = tiny.trainer(tmp_path, callback, accumulate_grad_batches=4)
    trainer.fit(tiny.Automatic(), **tiny.loaders())
    assert [report["current_step"] for report in watcher.reports] == [1, 2, 3, 4]  # 6 batches in each of 2 epochs
    assert {report["total_steps"] for report in watcher.reports} == {trainer.global_step}
    assert (watcher.state.total_epochs, watcher.state.epoch) == (2, 1)


def test_numbers_go_to_the_step_at_which_they_were_logged(tiny: ModuleType, tmp_path: Path, watcher: Watcher) -> None:
    seen: list[float] = []

    class Kept(tiny.Automatic):
        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            seen.append(loss.item())
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("after_the_step", float(self.global_step))

        def on_train_epoch_end(self) -> None:
            self.log("after_the_epoch", float(self.global_step))

    callback = HooklineCallback(plugins={"watcher": watcher})
    tiny.trainer(tmp_path, callback).fit(Kept(), **tiny.loaders())
    assert [report["train/loss"] for report in watcher.reports] == seen
    assert [report["mse_step"] for report in watcher.reports] == seen
    numbers = [(name, step, value) for step, report in watcher.logged for name, value in report.items()]
    after_steps = [(step, value) for name, step, value in numbers if name == "after_the_step"]
    assert after_steps == [(step, float(step)) for step in range(1, 13)]
    after_epochs = [(step, value) for name, step, value in numbers if name == "after_the_epoch"]
    assert after_epochs == [(6, 6.0), (12, 12.0)]
    means = [(step, value) for name, step, value in numbers if name == "mse_epoch"]
    assert means == [(6, pytest.approx(sum(seen[:6]) / 6)), (12, pytest.approx(sum(seen[6:]) / 6))]


def test_a_loss_of_accumulated_batches_is_not_divided(tiny: ModuleType, tmp_path: Path, watcher: Watcher) -> None:
    callback = HooklineCallback(plugins={"watcher": watcher})
    tiny.trainer(tmp_path, callback, accumulate_grad_batches=2).fit(tiny.Automatic(), **tiny.loaders())
    assert [report["train/loss"] for report in watcher.reports] == pytest.approx(
        [report["mse_step"] for report in watcher.reports]
    )


def test_a_validation_reports_its_batches_and_all_its_metrics(
    tiny: ModuleType, tmp_path: Path, watcher: Watcher
) -> None:
    callback = HooklineCallback(plugins={"watcher": watcher})
    trainer = tiny.trainer(tmp_path, callback)  # it also checks two batches before the fit
    trainer.fit(tiny.Automatic(), **tiny.loaders())
    assert len(watcher.validations) == 2
    first, last = watcher.validations
    scores = [report["val_score"] for report in watcher.validation_steps]
    assert [report["batch_index"] for report in watcher.validation_steps] == [0, 1, 0, 1]
    assert first["val_avg_loss"] == first["val_loss"] == pytest.approx(sum(scores[:2]) / 2)
    assert last.keys() == {"current_epoch", "val_avg_loss", "val_loss", "val_rmse"}
    assert last["val_rmse"] == float(trainer.callback_metrics["val_rmse"])
    assert callback.session is None


def test_a_validation_without_a_step_since_the_last_one_has_all_its_metrics(
    tiny: ModuleType, tmp_path: Path, watcher: Watcher
) -> None:
    callback = HooklineCallback(plugins={"watcher": watcher})
    tiny.trainer(tmp_path, callback, max_epochs=1, val_check_interval=1, accumulate_grad_batches=3).fit(
        tiny.Automatic(), **tiny.loaders()
    )
    assert len(watcher.validations) == 6
    assert all({"val_loss", "val_rmse"} <= report.keys() for report in watcher.validations)
    assert sum("mse_step" in numbers for _, numbers in watcher.logged) == 6  # and no number of training twice


@pytest.mark.parametrize("module", ["Automatic", "Manual"])
def test_gradients_are_alive_at_the_end_of_every_minibatch(
    tiny: ModuleType, tmp_path: Path, watcher: Watcher, module: str
) -> None:
    tiny.trainer(tmp_path, HooklineCallback(plugins={"watcher": watcher})).fit(
        getattr(tiny, module)(), **tiny.loaders()
    )
    assert len(watcher.gradients) == 12
    assert all(map(any, watcher.gradients))


def test_each_of_two_optimizers_takes_steps_of_its_own(tiny: ModuleType, tmp_path: Path, watcher: Watcher) -> None:
    trainer = tiny.trainer(tmp_path, HooklineCallback(plugins={"watcher": watcher}))
    trainer.fit(tiny.TwoOptimizers(), **tiny.loaders())
    assert [report["current_step"] for report in watcher.reports] == list(range(1, 25))
    assert trainer.global_step == 24
    assert ["mse_step" in report for report in watcher.reports] == [False, True] * 12  # logged once for a batch
    assert all(map(any, watcher.gradients))
    assert watcher.state.optimizer == dict(zip("01", trainer.optimizers, strict=True))


def test_a_stop_reason_makes_the_current_epoch_the_last(tiny: ModuleType, tmp_path: Path, watcher: Watcher) -> None:
    class Stopper:
        @hookimpl
        def post_training_step(self, state: TrainerState) -> None:
            if state.step == 8:
                state.stop_reason = "good enough"

    callback = HooklineCallback(plugins={"stopper": Stopper(), "watcher": watcher})
    tiny.trainer(tmp_path, callback, max_epochs=5).fit(tiny.Automatic(), **tiny.loaders())
    assert (watcher.state.epoch, watcher.state.step) == (1, 12)


def test_an_epoch_without_end_stops_at_the_step_that_gives_the_reason(
    tiny: ModuleType, tmp_path: Path, watcher: Watcher
) -> None:
    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            while True:
                yield [torch.ones(4), torch.ones(1)]

    class Stopper:
        @hookimpl
        def post_training_step(self, state: TrainerState) -> None:
            if state.step == 3:
                state.stop_reason = "good enough"

    callback = HooklineCallback(plugins={"stopper": Stopper(), "watcher": watcher})
    loader = torch.utils.data.DataLoader(Endless(), batch_size=2)
    tiny.trainer(tmp_path, callback, max_epochs=-1, limit_val_batches=0).fit(tiny.Automatic(), loader)
    assert (watcher.state.step, watcher.state.total_steps, watcher.state.total_epochs) == (3, None, None)


def test_only_a_fit_is_a_run(tiny: ModuleType, tmp_path: Path, watcher: Watcher) -> None:
    callback = HooklineCallback(tmp_path / "run", plugins={"watcher": watcher})
    trainer, module = tiny.trainer(tmp_path, callback), tiny.Automatic()
    trainer.validate(module, tiny.loaders()["val_dataloaders"], verbose=False)
    assert watcher.validations == []
    assert not (tmp_path / "run").exists()


def test_a_broken_plugin_does_not_stop_the_fit_and_ten_plugins_are_told(tiny: ModuleType, tmp_path: Path) -> None:
    class Broken:
        @hookimpl
        def post_training_step(self) -> None:
            raise ValueError("broken")

    watchers = {f"watcher-{number}": Watcher() for number in range(9)}
    callback = HooklineCallback(plugins={"broken": Broken(), **watchers})
    trainer = tiny.trainer(tmp_path, callback)
    trainer.fit(tiny.Automatic(), **tiny.loaders())
    assert trainer.global_step == 12
    assert {len(watcher.reports) for watcher in watchers.values()} == {12}
