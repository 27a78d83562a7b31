"""Events of training: the loop, its epochs, phases, steps and minibatches."""

from __future__ import annotations

from typing import Any

from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.state import TrainerState

__all__ = [
    "on_epoch_end",
    "on_epoch_start",
    "on_mb_end",
    "on_train_phase_end",
    "on_train_phase_start",
    "post_training",
    "post_training_step",
    "pre_training",
    "pre_training_step",
]


@hookspec
def pre_training(state: TrainerState, report_data: dict[str, Any]) -> None:
    """The training loop is about to start.

    When: once, after a resumed run has been restored and before the first epoch.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; its counters are those that training starts from.
        report_data: total_epochs, total_steps, start_epoch, start_step.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="epoch", starts=True)
def on_epoch_start(state: TrainerState) -> None:
    """An epoch starts.

    When: before the epoch's rollouts, or before its first batch in supervised training.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `epoch` is the one that starts.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="epoch", starts=True)
def on_train_phase_start(state: TrainerState) -> None:
    """The epoch's experience is complete and gradient steps are about to start.

    When: after the epoch's rollouts and rewards, before the first minibatch.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `experience` and `rollout_stats` are this epoch's.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="step", starts=True)
def pre_training_step(state: TrainerState, report_data: dict[str, Any]) -> None:
    """A gradient step is about to be taken.

    When: before the forward pass of each step.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `step` counts the steps already taken.
        report_data: current_epoch, current_step, total_steps.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="step")
def on_mb_end(state: TrainerState) -> None:
    """A minibatch has gone through forward pass, backward pass and optimizer step.

    When: after the optimizer's step, gradients still in place, before `post_training_step`.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `step` already counts this step and `loss_stats` are this minibatch's.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="step")
def post_training_step(state: TrainerState, report_data: dict[str, Any]) -> None:
    """A gradient step has been taken.

    When: after each step, when its metrics are known.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `step` counts this step.
        report_data: current_epoch, current_step, total_steps, and the step's metrics by name, such as train/loss.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="epoch")
def on_train_phase_end(state: TrainerState) -> None:
    """The epoch's gradient steps are done.

    When: after the last minibatch of the epoch, before `on_epoch_end`.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `loss_stats` are means over the epoch.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="epoch")
def on_epoch_end(state: TrainerState) -> None:
    """An epoch is over.

    When: after the epoch's train phase, before the next epoch starts.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `epoch` is the one that ends.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec
def post_training(state: TrainerState, report_data: dict[str, Any]) -> None:
    """The training loop has ended.

    When: once, after the last epoch and the last validation, before `on_training_complete`.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run at its end.
        report_data: final_epoch, final_step, total_steps, final_val_loss (None when the last validation was skipped).
    Returns: ignored.
    Added: 0.1.
    """
