"""The plugin, and the hook implementations that it shares with `CheckpointHook`."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import Any, Final

from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.manager import CheckpointManager, record_of
from hookline_checkpoint.options import Options
from hookline_hookspecs import CheckpointRecord, Emit, TrainerState, Watch, hookimpl

__all__ = ["Checkpoint", "CheckpointEvents"]

logger = logging.getLogger("hookline.checkpoint")

DEFAULT_SECONDS: Final = 5.0
"""The least time between two checkpoints by the default interval. A fast run has fifty epochs in a second."""


class CheckpointEvents:
    """The hook implementations that the plugin and `CheckpointHook` share.

    It is critical: a failed save stops the run, rather than leave it without checkpoints.
    """

    critical = True
    after: tuple[str, ...] = ("evaluation",)  # so that a checkpoint has the scores of its own epoch

    def __init__(self, checkpoint_manager: CheckpointManager, emit: Emit | None) -> None:
        self.checkpoint_manager = checkpoint_manager
        self._events = emit
        self._is_prepared = False
        self._may_have_news = False
        """Whether a checkpoint is being written or uploaded. Looked at in every step, so it is a plain field."""
        self._by_epochs: Watch | None = None
        self._by_steps = Watch(None)
        self._saved_at = -math.inf
        self._being_uploaded: CheckpointRecord | None = None
        """A durable checkpoint that is announced once its upload is complete and its URI known."""

    @property
    def _emit(self) -> Emit:
        if self._events is None:
            raise CheckpointError(f"this {type(self).__name__} cannot emit events: add it with trainer.add_hook(...)")
        return self._events

    # -- the beginning --------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_new_training_run(self, state: TrainerState) -> None:
        other = state.shared["checkpoint"].setdefault("saver", self)
        if other is not self:
            raise CheckpointError(
                f"a {type(other).__name__} and a {type(self).__name__} would both save this run's checkpoints: "
                "disable the installed plugin (-p no:checkpoint), or do not add the hook"
            )
        self._is_prepared, self._by_epochs, self._being_uploaded = False, None, None
        self._saved_at = -math.inf
        self.checkpoint_manager.begin(state)

    @hookimpl
    def restore_training_run(self, state: TrainerState) -> CheckpointRecord | None:
        """Restore the state from the newest valid checkpoint, if `state.resume` is set.

        `state.epoch` is then the last complete epoch. Training continues with the next one.
        """
        emit = self._emit
        loaded = self.checkpoint_manager.restore(state) if state.resume else None
        if loaded is None:
            return None
        record = record_of(loaded)
        emit.load_plugin_state(state=state, saved=loaded.contents.plugins)
        emit.on_checkpoint_restored(state=state, checkpoint=record)
        return record

    @hookimpl(scope="driver")
    def pre_training(self, state: TrainerState, report_data: dict[str, Any]) -> None:
        self._count_from(state, report_data["start_epoch"])

    def _count_from(self, state: TrainerState, complete_epochs: int) -> Watch:
        options = self.checkpoint_manager.options
        self._by_steps = Watch(options.every_steps, state.step)
        self._by_epochs = Watch(options.interval(state.total_epochs), complete_epochs)
        return self._by_epochs

    # -- saving ---------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_epoch_end(self, state: TrainerState) -> None:
        # A plugin that joins a run counts from the epoch that it joins in.
        by_epochs = self._by_epochs or self._count_from(state, state.epoch)
        due = [by_epochs.is_due(state.epoch + 1), self._by_steps.is_due(state.step)]
        if any(due) and not self._can_wait(state):
            self._save_if_free(state)

    def _can_wait(self, state: TrainerState) -> bool:
        """Whether a checkpoint by the default interval may be left out, since there was one a moment ago.

        Where the best are kept, an epoch that was evaluated is always saved: it may be one of them.
        """
        options = self.checkpoint_manager.options
        may_be_best = options.keep_best > 0 and state.shared["evaluation"].get("step") == state.step
        return not (options.has_own_interval or may_be_best) and time.monotonic() < self._saved_at + DEFAULT_SECONDS

    def _save_if_free(self, state: TrainerState) -> None:
        """Save, unless the previous checkpoint is still being written and `when_busy` is `skip`."""
        manager = self.checkpoint_manager
        if manager.options.when_busy == "skip" and manager.is_writing:
            logger.warning("epoch %d is not saved, since the previous checkpoint is still being written", state.epoch)
        else:
            self._save(state)

    def _save(self, state: TrainerState) -> None:
        self._look(state, wait=True)
        if self.checkpoint_manager.folder(state) is None or self.checkpoint_manager.is_saved(state):
            return
        states: dict[str, dict[str, Any]] = {}
        for plugin, saved in self._emit.save_plugin_state(state=state).items():
            states.setdefault(plugin, {}).update(saved)
        self.checkpoint_manager.start(self._saved_state(state), states)
        self._may_have_news = True
        self._saved_at = time.monotonic()

    def _saved_state(self, state: TrainerState) -> TrainerState:
        """The state whose policy and optimizer are saved."""
        return state

    # -- announcing -----------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def post_training_step(self, state: TrainerState) -> None:
        if not self._is_prepared:
            self._is_prepared = True
            self.checkpoint_manager.prepare(state)
        if self._may_have_news:
            self._look(state)

    @hookimpl(scope="driver")
    def on_epoch_start(self, state: TrainerState) -> None:
        if self._may_have_news:
            self._look(state)

    def _look(self, state: TrainerState, *, wait: bool = False, is_final: bool = False) -> None:
        """Announce a checkpoint that has become durable. One that is uploaded is announced after its upload.

        :param wait: wait for the checkpoint that is being written.
        :param is_final: the run is over, so the checkpoint is uploaded even if no upload is due.
        """
        self._may_have_news = True  # also if this raises
        self._look_at_uploads(state)
        record = self.checkpoint_manager.finish(wait=wait)
        if record is not None:
            self._announce_uploaded(state, None)  # an older one is announced first, although its upload goes on
            state.latest_checkpoint_path = record.path
            if self._offer_upload(state, is_final=is_final):
                self._being_uploaded = record
            else:
                self._emit.on_checkpoint_saved(state=state, checkpoint=record)
        self._may_have_news = not self.checkpoint_manager.is_idle

    def _offer_upload(self, state: TrainerState, *, is_final: bool = False) -> bool:
        return self.checkpoint_manager.offer_upload(self._wandb_run(state), is_final=is_final)

    def _wandb_run(self, state: TrainerState) -> Any | None:
        """The wandb run to upload checkpoints to, if there is one."""
        return state.shared["metrics"].get("wandb_run")

    def _look_at_uploads(self, state: TrainerState, *, wait: bool = False) -> None:
        uri = self.checkpoint_manager.finish_upload(wait=wait)
        if uri is not None:
            self.uploaded(state, uri)
        if wait or not self.checkpoint_manager.is_uploading:
            self._announce_uploaded(state, uri)

    def _announce_uploaded(self, state: TrainerState, uri: str | None) -> None:
        record, self._being_uploaded = self._being_uploaded, None
        if record is not None:
            self._emit.on_checkpoint_saved(state=state, checkpoint=replace(record, uri=uri))

    def uploaded(self, state: TrainerState, uri: str) -> None:
        """Note the URI of an uploaded checkpoint."""
        state.latest_checkpoint_uri = uri

    # -- the end --------------------------------------------------------------------------------------------------

    @hookimpl(scope="driver")
    def on_training_complete(self, state: TrainerState) -> None:
        self._save(state)
        self._look_at_uploads(state, wait=True)  # finish an earlier upload, so that the last checkpoint can follow
        self._look(state, wait=True, is_final=True)
        self._look_at_uploads(state, wait=True)
        if self.checkpoint_manager.is_idle:
            self._offer_upload(state, is_final=True)
            self._look_at_uploads(state, wait=True)
        state.shared["checkpoint"].pop("saver", None)

    @hookimpl(scope="driver")
    def on_training_failed(self, state: TrainerState) -> None:
        """Wait for the checkpoint that is being written. Nothing more is saved, as an epoch cannot resume half-way."""
        if state.shared["checkpoint"].get("saver") is self:
            del state.shared["checkpoint"]["saver"]
        self._look(state, wait=True)
        self._look_at_uploads(state, wait=True)


class Checkpoint(CheckpointEvents):
    """Saves the run at intervals and at its end, and resumes it if asked to."""

    def __init__(self, options: Options, emit: Emit) -> None:
        super().__init__(CheckpointManager(**vars(options)), emit)
