"""Events of a run: it starts, resumes, ends or fails."""

from __future__ import annotations

from typing import Any

from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.state import TrainerState

__all__ = ["on_new_training_run", "on_training_complete", "on_training_failed", "restore_training_run"]


@hookspec
def on_new_training_run(state: TrainerState) -> None:
    """A run, new or resumed, is about to start.

    When: once, after policy and optimizer exist and before `restore_training_run`.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; counters are still zero.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(kind="decide")
def restore_training_run(state: TrainerState) -> Any | None:
    """Restore the state of an earlier run, if this run resumes one.

    When: once, after `on_new_training_run` and before `pre_training`.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run; counters, policy and optimizer are restored in place.
    Returns: what the run was restored from, such as a `CheckpointRecord`; None leaves it to the next plugin.
    Added: 0.1.
    """


@hookspec
def on_training_complete(state: TrainerState) -> None:
    """The run is complete.

    When: once, after `post_training`.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run at its end.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec
def on_training_failed(state: TrainerState, error: BaseException) -> None:
    """The run was ended by an exception, Ctrl-C or SIGTERM.

    When: once, instead of `on_training_complete`, before the error is raised to the caller.
    Emitted by: trainer.
    Where: every rank, training thread.
    Args:
        state: the run as it was when it failed.
        error: the exception that ended it; `KeyboardInterrupt` for Ctrl-C.
    Returns: ignored.
    Added: 0.1.
    """
