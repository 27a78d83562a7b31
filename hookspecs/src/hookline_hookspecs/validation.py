"""Events of a validation: it starts, goes through batches, ends."""

from __future__ import annotations

from typing import Any

from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.state import TrainerState

__all__ = ["post_validation", "post_validation_step", "pre_validation", "pre_validation_step"]


@hookspec(clock="step")
def pre_validation(state: TrainerState, report_data: dict[str, Any]) -> None:
    """A validation is about to start.

    When: at step 0 if configured, every so many steps, and at the last step; before the first batch.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; `step` counts the gradient steps taken.
        report_data: current_epoch, is_last_step.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec
def pre_validation_step(state: TrainerState, report_data: dict[str, Any]) -> None:
    """A validation batch is about to be scored.

    When: before each batch of a validation.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run.
        report_data: current_epoch, batch_index.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec
def post_validation_step(state: TrainerState, report_data: dict[str, Any]) -> None:
    """A validation batch has been scored.

    When: after each batch of a validation.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run.
        report_data: current_epoch, batch_index, val_score.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="step")
def post_validation(state: TrainerState, report_data: dict[str, Any]) -> None:
    """A validation is over.

    When: after its last batch, once the loss has been averaged over all ranks.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run.
        report_data: current_epoch, val_avg_loss.
    Returns: ignored.
    Added: 0.1.
    """
