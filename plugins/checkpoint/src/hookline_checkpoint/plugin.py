"""The plugin: the moments at which a run is saved, restored, and told of."""

from __future__ import annotations

import logging
from typing import Any

from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.manager import CheckpointManager, record_of
from hookline_checkpoint.options import Options
from hookline_hookspecs import CheckpointRecord, Emit, TrainerState, hookimpl

__all__ = ["Checkpoint"]

logger = logging.getLogger("hookline.checkpoint")


class Checkpoint:
    """Saves the run at its schedule and at its end, and resumes it when asked.

    A failure to save ends the run: who counts on checkpoints wants to know at once.
    """

    critical = True
    after = ("evaluation",)  # a checkpoint carries the scores of its own epoch

    def __init__(self, options: Options, emit: Emit) -> None:
        self.checkpoint_manager = CheckpointManager(**vars(options))
        self._emit: Emit = emit

    # -- beginning ------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        other = state.shared["checkpoint"].setdefault("saver", self)
        if other is not self:
            raise CheckpointError(
                f"both {_named(other)} and {_named(self)} would save this run's checkpoints: "
                "disable the installed plugin (-p no:checkpoint), or do not add a hook"
            )
        self.checkpoint_manager.begin(state)

    @hookimpl
    def restore_training_run(self, state: TrainerState) -> CheckpointRecord | None:
        """Put the newest valid checkpoint into the state.

        `state.epoch` is then the last epoch that is complete; training goes on with the one after it.
        """
        return self._restore(state) if state.resume else None

    def _restore(self, state: TrainerState) -> CheckpointRecord | None:
        loaded = self.checkpoint_manager.restore(state)
        if loaded is None:
            return None
        record = record_of(loaded)
        self._emit.load_plugin_state(state=state, saved=loaded.contents.plugins)
        self._emit.on_checkpoint_restored(state=state, checkpoint=record)
        return record

    # -- saving ---------------------------------------------------------------------------------------------------

    @hookimpl(every=10, scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        self._save_if_free(state)

    def _save_if_free(self, state: TrainerState) -> None:
        if self.checkpoint_manager.options.when_busy == "skip" and self.checkpoint_manager.must_wait():
            logger.warning("epoch %d is not saved: the checkpoint before it is still being written", state.epoch)
            return
        self._save(state)

    def _save(self, state: TrainerState) -> None:
        self._look(state, wait=True)
        if self.checkpoint_manager.folder(state) is None or self.checkpoint_manager.is_saved(state):
            return
        states: dict[str, dict[str, Any]] = {}
        for plugin, saved in self._emit.save_plugin_state(state=state).items():
            states.setdefault(plugin, {}).update(saved)
        self.checkpoint_manager.start(state, states)

    # -- telling --------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def post_training_step(self, state: TrainerState) -> None:
        if not self.checkpoint_manager.is_idle:
            self._look(state)

    @hookimpl(scope="driver")
    def on_epoch_start(self, state: TrainerState) -> None:
        if not self.checkpoint_manager.is_idle:
            self._look(state)

    def _look(self, state: TrainerState, *, wait: bool = False, is_final: bool = False) -> None:
        """Tell of what has become durable, or was uploaded, since the last look."""
        record = self.checkpoint_manager.finish(wait=wait)
        if record is not None:
            state.latest_checkpoint_path = record.path
            self._emit.on_checkpoint_saved(state=state, checkpoint=record)
        uri = self.checkpoint_manager.finish_upload(wait=is_final)
        if record is not None:
            wandb_run = state.shared["metrics"].get("wandb_run")
            self.checkpoint_manager.offer_upload(record, wandb_run, is_final=is_final)
        uri = (self.checkpoint_manager.finish_upload(wait=True) if is_final else None) or uri
        if uri is not None:
            state.latest_checkpoint_uri = uri

    # -- the end --------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._save(state)
        self._look(state, wait=True, is_final=True)
        state.shared["checkpoint"].pop("saver", None)

    @hookimpl(scope="driver")
    def on_training_failed(self, state: TrainerState) -> None:
        """Wait for what is being written. The run itself is not saved: an epoch cannot be resumed from its middle."""
        state.shared["checkpoint"].pop("saver", None)
        self._look(state, wait=True)


def _named(saver: object) -> str:
    return "the checkpoint plugin" if type(saver) is Checkpoint else f"a {type(saver).__name__}"
