"""The whole of a small run, event by event, in both modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline.testing import EventRecorder, RecordedEvent
from hookline.training import Trainer


def written(event: RecordedEvent) -> str:
    """One event as a line: its name, and what its report or its context says; numbers that training makes as dots."""
    arguments: Mapping[str, Any] = event.arguments
    if "report_data" in arguments:
        shown = {k: v for k, v in arguments["report_data"].items() if not k.startswith("train/") or k == "train/loss"}
        report = " ".join(f"{k}={'...' if isinstance(v, float) else v}" for k, v in shown.items())
        step = f" at {arguments['step']}" if "step" in arguments else ""
        return f"{event.name} {report}{step}"
    if "state" in arguments:
        return f"{event.name} epoch={arguments['state'].epoch} step={arguments['state'].step}"
    if "version" in arguments:
        return f"{event.name} version={arguments['version']}"
    return f"{event.name} rollout={arguments['context'].step}" if "context" in arguments else event.name


def test_a_supervised_run_emits_these_events(
    supervised: Callable[..., Trainer], hookline_events: EventRecorder
) -> None:
    trainer = supervised(
        epochs=2, validation_dataset=[{"tokens": [2, 3, 4]}] * 5, validate_every=2, validate_at_start=True
    )
    trainer.train()
    assert [written(event) for event in hookline_events.events] == [
        "register_losses",
        "on_new_training_run epoch=0 step=0",
        "restore_training_run epoch=0 step=0",
        "pre_training total_epochs=2 total_steps=4 start_epoch=0 start_step=0",
        "pre_validation current_epoch=0 is_last_step=False",
        "pre_validation_step current_epoch=0 batch_index=0",
        "post_validation_step current_epoch=0 batch_index=0 val_score=...",
        "pre_validation_step current_epoch=0 batch_index=1",
        "post_validation_step current_epoch=0 batch_index=1 val_score=...",
        "post_validation current_epoch=0 val_avg_loss=...",
        "log_metrics current_epoch=0 val_avg_loss=... at 0",
        "on_epoch_start epoch=0 step=0",
        "on_train_phase_start epoch=0 step=0",
        "pre_training_step current_epoch=0 current_step=0 total_steps=4",
        "on_mb_end epoch=0 step=1",
        "post_training_step current_epoch=0 current_step=1 total_steps=4 train/loss=...",
        "log_metrics current_epoch=0 current_step=1 total_steps=4 train/loss=... at 1",
        "pre_training_step current_epoch=0 current_step=1 total_steps=4",
        "on_mb_end epoch=0 step=2",
        "post_training_step current_epoch=0 current_step=2 total_steps=4 train/loss=...",
        "log_metrics current_epoch=0 current_step=2 total_steps=4 train/loss=... at 2",
        "pre_validation current_epoch=0 is_last_step=False",
        "pre_validation_step current_epoch=0 batch_index=0",
        "post_validation_step current_epoch=0 batch_index=0 val_score=...",
        "pre_validation_step current_epoch=0 batch_index=1",
        "post_validation_step current_epoch=0 batch_index=1 val_score=...",
        "post_validation current_epoch=0 val_avg_loss=...",
        "log_metrics current_epoch=0 val_avg_loss=... at 2",
        "on_train_phase_end epoch=0 step=2",
        "on_epoch_end epoch=0 step=2",
        "on_epoch_start epoch=1 step=2",
        "on_train_phase_start epoch=1 step=2",
        "pre_training_step current_epoch=1 current_step=2 total_steps=4",
        "on_mb_end epoch=1 step=3",
        "post_training_step current_epoch=1 current_step=3 total_steps=4 train/loss=...",
        "log_metrics current_epoch=1 current_step=3 total_steps=4 train/loss=... at 3",
        "pre_training_step current_epoch=1 current_step=3 total_steps=4",
        "on_mb_end epoch=1 step=4",
        "post_training_step current_epoch=1 current_step=4 total_steps=4 train/loss=...",
        "log_metrics current_epoch=1 current_step=4 total_steps=4 train/loss=... at 4",
        "pre_validation current_epoch=1 is_last_step=True",
        "pre_validation_step current_epoch=1 batch_index=0",
        "post_validation_step current_epoch=1 batch_index=0 val_score=...",
        "pre_validation_step current_epoch=1 batch_index=1",
        "post_validation_step current_epoch=1 batch_index=1 val_score=...",
        "post_validation current_epoch=1 val_avg_loss=...",
        "log_metrics current_epoch=1 val_avg_loss=... at 4",
        "on_train_phase_end epoch=1 step=4",
        "on_epoch_end epoch=1 step=4",
        "post_training final_epoch=1 final_step=4 total_steps=4 final_val_loss=...",
        "on_training_complete epoch=1 step=4",
    ]


def test_a_run_of_rollouts_emits_these_events(playing: Callable[..., Trainer], hookline_events: EventRecorder) -> None:
    trainer = playing(epochs=2)
    trainer.train()
    assert [written(event) for event in hookline_events.events] == [
        "register_environments",
        "register_sources",
        "register_losses",
        "on_new_training_run epoch=0 step=0",
        "restore_training_run epoch=0 step=0",
        "pre_training total_epochs=2 total_steps=4 start_epoch=0 start_step=0",
        "on_weights_updated version=0",
        "on_epoch_start epoch=0 step=0",
        "on_worker_start rollout=0",
        "on_rollout_start rollout=0",
        "on_rollout_end rollout=1",
        "on_train_phase_start epoch=0 step=0",
        "pre_training_step current_epoch=0 current_step=0 total_steps=4",
        "on_mb_end epoch=0 step=1",
        "post_training_step current_epoch=0 current_step=1 total_steps=4 train/loss=...",
        "log_metrics current_epoch=0 current_step=1 total_steps=4 train/loss=... at 1",
        "pre_training_step current_epoch=0 current_step=1 total_steps=4",
        "on_mb_end epoch=0 step=2",
        "post_training_step current_epoch=0 current_step=2 total_steps=4 train/loss=...",
        "log_metrics current_epoch=0 current_step=2 total_steps=4 train/loss=... at 2",
        "on_train_phase_end epoch=0 step=2",
        "on_weights_updated version=1",
        "on_epoch_end epoch=0 step=2",
        "on_epoch_start epoch=1 step=2",
        "on_rollout_start rollout=1",
        "on_rollout_end rollout=2",
        "on_train_phase_start epoch=1 step=2",
        "pre_training_step current_epoch=1 current_step=2 total_steps=4",
        "on_mb_end epoch=1 step=3",
        "post_training_step current_epoch=1 current_step=3 total_steps=4 train/loss=...",
        "log_metrics current_epoch=1 current_step=3 total_steps=4 train/loss=... at 3",
        "pre_training_step current_epoch=1 current_step=3 total_steps=4",
        "on_mb_end epoch=1 step=4",
        "post_training_step current_epoch=1 current_step=4 total_steps=4 train/loss=...",
        "log_metrics current_epoch=1 current_step=4 total_steps=4 train/loss=... at 4",
        "on_train_phase_end epoch=1 step=4",
        "on_weights_updated version=2",
        "on_epoch_end epoch=1 step=4",
        "post_training final_epoch=1 final_step=4 total_steps=4 final_val_loss=None",
        "on_training_complete epoch=1 step=4",
        "on_worker_stop rollout=2",
    ]


def test_reports_have_exactly_the_keys_that_are_promised(
    supervised: Callable[..., Trainer], hookline_events: EventRecorder
) -> None:
    supervised(epochs=1, validation_dataset=[{"tokens": [2, 3, 4]}]).train()
    step = {"current_epoch", "current_step", "total_steps"}
    promised = {
        "pre_training": {"total_epochs", "total_steps", "start_epoch", "start_step"},
        "pre_training_step": step,
        "post_training_step": step | {"train/loss", "train/sft", "train/grad_norm", "train/learning_rate"},
        "post_training": {"final_epoch", "final_step", "total_steps", "final_val_loss"},
        "pre_validation": {"current_epoch", "is_last_step"},
        "pre_validation_step": {"current_epoch", "batch_index"},
        "post_validation_step": {"current_epoch", "batch_index", "val_score"},
        "post_validation": {"current_epoch", "val_avg_loss"},
    }
    for name, keys in promised.items():
        reports = [event.arguments["report_data"] for event in hookline_events.of(name)]
        assert reports
        assert all(set(report) == keys for report in reports), name


def test_statistics_are_a_minibatchs_within_an_epoch_and_means_at_its_end(
    supervised: Callable[..., Trainer], hookline_events: EventRecorder
) -> None:
    supervised(epochs=1).train()
    of_minibatches = [event.arguments["state"].loss_stats["train/loss"] for event in hookline_events.of("on_mb_end")]
    (end,) = hookline_events.of("on_train_phase_end")
    assert len(of_minibatches) == 2
    assert end.arguments["state"].loss_stats["train/loss"] == sum(of_minibatches) / 2


def test_without_validation_there_is_no_final_loss(
    supervised: Callable[..., Trainer], hookline_events: EventRecorder
) -> None:
    supervised(epochs=1).train()
    (end,) = hookline_events.of("post_training")
    assert end.arguments["report_data"]["final_val_loss"] is None
    assert not hookline_events.of("pre_validation")
