"""Events of checkpoints: plugins save and load their state, a checkpoint is saved or restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline_hookspecs.artifacts import CheckpointRecord
from hookline_hookspecs.markers import hookspec
from hookline_hookspecs.state import TrainerState

__all__ = ["load_plugin_state", "on_checkpoint_restored", "on_checkpoint_saved", "save_plugin_state"]


@hookspec(kind="collect", scope="driver", returns=Mapping)
def save_plugin_state(state: TrainerState) -> Mapping[str, Any] | None:
    """Return the state that your plugin needs in a resumed run.

    If your plugin writes files that must be on disk before the checkpoint becomes valid, do not wait for them here. Put
    a function without arguments into `state.shared[<plugin>]["before_checkpoint"]`. The thread that writes the
    checkpoint calls it before the checkpoint becomes valid.

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
    """Load the state that your plugin saved.

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

    When: after its files are durable on disk; if it is uploaded, after the upload, with its URI in `checkpoint.uri`.
    Emitted by: checkpoint plugin.
    Where: rank 0, training thread.
    Args:
        state: the run.
        checkpoint: its path, epoch, step and scores.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec
def on_checkpoint_restored(state: TrainerState, checkpoint: CheckpointRecord) -> None:
    """A run has been restored from a checkpoint.

    When: after `load_plugin_state`, before `pre_training`.
    Emitted by: checkpoint plugin.
    Where: every rank, training thread.
    Args:
        state: the restored run.
        checkpoint: the checkpoint that it was restored from.
    Returns: ignored.
    Added: 0.1.
    """
