"""Which moments of a trainer reach plugins, and with which numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_trainers import ROWS, losses, make_trainer
from transformers import EarlyStoppingCallback

from hookline import hookimpl
from hookline.errors import HooklineError
from hookline.session import RunFolderError
from hookline.testing import check_emitter
from hookline_hookspecs import TrainerState
from hookline_transformers import HooklineCallback, hookline_run


def train(trainer: Any) -> Any:
    with hookline_run(trainer):
        trainer.train()
    return trainer


WITH_EVALUATION = {"eval_strategy": "steps", "eval_steps": 2}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("trainer", WITH_EVALUATION),
        ("trainer", {"gradient_accumulation_steps": 3}),
        ("sft", WITH_EVALUATION),
        ("dpo", {}),
        ("grpo", {}),
        ("grpo", {"gradient_accumulation_steps": 2}),
    ],
)
def test_a_trainer_keeps_the_promises_of_the_event_contract(kind: str, more: Mapping[str, Any], folder: Path) -> None:
    numbers = itertools.count()

    def run(plugin: object) -> None:
        own = folder / str(next(numbers))
        callback = HooklineCallback(own / "run", plugins={"recorder": plugin})
        train(make_trainer(kind, own, callback, max_steps=3, save_strategy="no", **more))

    check_emitter(run)


def test_numbers_that_are_logged_now_and_then_go_to_the_step_they_belong_to(folder: Path, recorded: Any) -> None:
    trainer = train(make_trainer("trainer", folder, HooklineCallback(folder / "run")))
    assert recorded["train/loss"] == pytest.approx(losses(trainer))
    assert list(recorded["train/loss"]) == [2, 4, 6]
    assert recorded["train/learning_rate"].keys() == {2, 4, 6}


class Watcher:
    """Notes what it is told of steps, epochs and validations."""

    def __init__(self) -> None:
        self.reports: list[Mapping[str, Any]] = []
        self.validations: list[Mapping[str, Any]] = []
        self.gradients: list[bool] = []
        self.epoch_losses: list[float | None] = []

    @hookimpl
    def on_mb_end(self, state: TrainerState) -> None:
        self.gradients.append(any(float(own.grad.abs().sum()) > 0 for own in state.policy.parameters()))

    @hookimpl
    def post_training_step(self, report_data: Mapping[str, Any]) -> None:
        self.reports.append(report_data)

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        self.epoch_losses.append(state.loss_stats.get("train/loss"))

    @hookimpl
    def post_validation(self, report_data: Mapping[str, Any]) -> None:
        self.validations.append(report_data)


def test_the_report_of_a_step_that_is_logged_has_its_numbers(folder: Path) -> None:
    watcher = Watcher()
    trainer = train(make_trainer("trainer", folder, HooklineCallback(folder / "run", plugins={"watcher": watcher})))
    logged = {own["current_step"]: own["train/loss"] for own in watcher.reports if "train/loss" in own}
    assert logged == losses(trainer)
    assert len(watcher.reports) == 6


def test_numbers_that_are_logged_once_an_epoch_are_there_when_it_ends(folder: Path) -> None:
    watcher = Watcher()
    callback = HooklineCallback(folder / "run", plugins={"watcher": watcher})
    trainer = train(make_trainer("trainer", folder, callback, logging_strategy="epoch"))
    assert watcher.epoch_losses == list(losses(trainer).values())


def test_an_epoch_ends_before_the_next_one_also_where_its_numbers_were_logged_with_its_step(folder: Path) -> None:
    """As they are in the first epoch here, which has one step: the trainer does not log them again at its end."""

    class Epochs:
        def __init__(self) -> None:
            self.seen: list[tuple[str, int, int]] = []

        @hookimpl
        def on_epoch_start(self, state: TrainerState) -> None:
            self.seen.append(("start", state.epoch, state.step))

        @hookimpl
        def on_epoch_end(self, state: TrainerState) -> None:
            self.seen.append(("end", state.epoch, state.step))

    epochs = Epochs()
    callback = HooklineCallback(folder / "run", plugins={"epochs": epochs})
    more = {"per_device_train_batch_size": ROWS, "logging_strategy": "epoch", "logging_first_step": True}
    train(make_trainer("trainer", folder, callback, max_steps=2, **more))
    assert epochs.seen == [("start", 0, 0), ("end", 0, 1), ("start", 1, 1), ("end", 1, 2)]


def test_the_validation_after_which_another_callback_stops_training_is_the_last(folder: Path) -> None:
    class End:
        @hookimpl
        def post_training(self, report_data: Mapping[str, Any]) -> None:
            self.report = report_data

    end = End()
    more = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "load_best_model_at_end": True}
    trainer = make_trainer("trainer", folder, HooklineCallback(folder / "run", plugins={"end": end}), **more)
    trainer.add_callback(EarlyStoppingCallback(1, early_stopping_threshold=100.0))
    train(trainer)
    logged = [own["eval_loss"] for own in trainer.state.log_history if "eval_loss" in own]
    assert (end.report["final_step"], end.report["final_val_loss"]) == (4, logged[-1])


def test_gradients_are_alive_when_a_minibatch_ends(folder: Path, recorded: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOOKLINE_OPTIONS", "metrics.progress=off metrics.gradients_every=1")
    watcher = Watcher()
    train(make_trainer("trainer", folder, HooklineCallback(folder / "run", plugins={"watcher": watcher})))
    assert watcher.gradients == [True] * 6
    assert all(norm > 0 for norm in recorded["gradients/norm"].values())
    assert recorded["gradients/norm"]


def test_a_validation_has_all_its_metrics_and_the_last_one_its_loss(folder: Path, recorded: Any) -> None:
    watcher = Watcher()
    callback = HooklineCallback(folder / "run", plugins={"watcher": watcher})
    trainer = make_trainer("trainer", folder, callback, eval_strategy="steps", eval_steps=3, eval_on_start=True)
    trainer.compute_metrics = lambda _: {"accuracy": 0.25}
    train(trainer)
    assert [own["val/accuracy"] for own in watcher.validations] == [0.25] * 3
    logged = {own["step"]: own["eval_loss"] for own in trainer.state.log_history if "eval_loss" in own}
    assert recorded["val_avg_loss"] == pytest.approx(logged)


def test_each_of_several_datasets_is_a_validation_of_its_own(folder: Path) -> None:
    watcher = Watcher()
    callback = HooklineCallback(folder / "run", plugins={"watcher": watcher})
    trainer = make_trainer("trainer", folder, callback, eval_strategy="epoch", max_steps=4)
    trainer.eval_dataset = {"easy": trainer.eval_dataset, "hard": trainer.eval_dataset}
    train(trainer)
    assert [[name for name in own if name.endswith("_loss")] for own in watcher.validations] == [
        ["val_avg_loss", "val/easy_loss"],
        ["val_avg_loss", "val/hard_loss"],
    ]


class Stopper:
    @hookimpl
    def post_training_step(self, state: TrainerState) -> None:
        if state.step == 3:
            state.stop_reason = "enough"


def test_a_plugin_that_gives_a_reason_stops_the_trainer(folder: Path) -> None:
    callback = HooklineCallback(folder / "run", plugins={"stopper": Stopper()})
    assert train(make_trainer("trainer", folder, callback)).state.global_step == 3


class Broken:
    @hookimpl
    def post_training_step(self) -> None:
        raise RuntimeError("broken on purpose")


def test_ten_plugins_see_the_same_run_and_a_broken_one_stops_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watchers = {f"watcher-{number}": Watcher() for number in range(10)}
    callback = HooklineCallback(folder / "run", plugins={**watchers, "broken": Broken()})
    assert train(make_trainer("trainer", folder, callback)).state.global_step == 6
    first, *others = watchers.values()
    assert len(first.reports) == 6
    assert all(other.reports == first.reports for other in others)
    assert "broken on purpose" in capsys.readouterr().err


def test_the_trainer_learns_the_same_with_plugins_as_without(folder: Path) -> None:
    with_plugins = train(make_trainer("trainer", folder / "with", HooklineCallback(folder / "run")))
    without = make_trainer("trainer", folder / "without")
    without.train()
    assert losses(with_plugins) == losses(without)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"restore_callback_states_from_checkpoint": True}, "make every callback anew from JSON"),
        ({"auto_find_batch_size": True}, "begins a training again without a word to callbacks"),
        ({"output_dir": "run"}, "is the trainer's output_dir, where save_model"),
    ],
)
def test_arguments_under_which_a_run_cannot_be_told_are_refused(
    arguments: Mapping[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(HooklineError, match=message):
        make_trainer("trainer", folder, HooklineCallback("run"), **arguments)


def test_a_second_run_in_the_same_folder_is_refused_with_what_to_do(folder: Path) -> None:
    train(make_trainer("trainer", folder, HooklineCallback(folder / "run"), max_steps=1))
    with pytest.raises(RunFolderError, match=r"holds a run already[\s\S]*resume_from_checkpoint"):
        train(make_trainer("trainer", folder, HooklineCallback(folder / "run"), max_steps=1))


def test_a_trainer_without_the_callback_is_refused(folder: Path) -> None:
    with (
        pytest.raises(HooklineError, match="this Trainer has no HooklineCallback"),
        hookline_run(make_trainer("trainer", folder)),
    ):
        pass
