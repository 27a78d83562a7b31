"""The moments of a checkpoint, and what plugins put into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline_hookspecs.artifacts import CheckpointRecord
from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.state import TrainerState

__all__ = ["load_plugin_state", "on_checkpoint_restored", "on_checkpoint_saved", "save_plugin_state"]


@hookspec(kind="collect", scope="driver", returns=Mapping)
def save_plugin_state(state: TrainerState) -> Mapping[str, Any] | None:
    """Hand over what your plugin must remember for a resumed run.

    What must be on disk before the checkpoint counts need not be waited for here: put a function without arguments into
    `state.shared[<plugin>]["before_checkpoint"]`, and the thread that writes the checkpoint calls it, and waits for it,
    before the checkpoint becomes valid.

    When: while a checkpoint is being taken.
    Emitted by: checkpoint plugin.
    Where: rank 0, training thread.
    Args:
        state: the run.
    Returns: a mapping of what JSON can hold and of arrays, kept under the plugin's name, or None; anything else is the
        plugin's failure. Arrays lie beside the policy's in safetensors; they are copied, so they need not be copies.
    Added: 0.1.
    """


@hookspec
def load_plugin_state(state: TrainerState, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Take back what your plugin handed over.

    When: while a run is being restored, after counters, policy and optimizer.
    Emitted by: checkpoint plugin.
    Where: every rank, training thread.
    Args:
        state: the restored run.
        saved: what `save_plugin_state` returned, by plugin name.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="epoch", scope="driver")
def on_checkpoint_saved(state: TrainerState, checkpoint: CheckpointRecord) -> None:
    """A checkpoint is durable.

    When: after its files are on disk for good; one that is uploaded has been, and `checkpoint.uri` says where to.
    Emitted by: checkpoint plugin.
    Where: rank 0, training thread.
    Args:
        state: the run.
        checkpoint: where it is, and what it was saved with.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec
def on_checkpoint_restored(state: TrainerState, checkpoint: CheckpointRecord) -> None:
    """A run goes on from a checkpoint.

    When: after `load_plugin_state`, before `pre_training`.
    Emitted by: checkpoint plugin.
    Where: every rank, training thread.
    Args:
        state: the restored run.
        checkpoint: what it was restored from.
    Returns: ignored.
    Added: 0.1.
    """
