"""`CheckpointHook`: the plugin as a hook, for `trainer.add_hook`.

    manager = CheckpointManager("runs/mine", keep_last=2)
    trainer.add_hook(CheckpointHook(manager, checkpoint_interval=10, wandb_checkpoint_interval=50))

A subclass may override `on_training_start` or `on_epoch_end`. Without a call of `super()` nothing is loaded or saved
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.manager import CheckpointManager
from hookline_checkpoint.plugin import CheckpointEvents
from hookline_hookspecs import CheckpointRecord, Emit, TrainerHook, TrainerState, hookimpl

__all__ = ["CheckpointHook"]


class CheckpointHook(CheckpointEvents, TrainerHook):
    """Saves every `checkpoint_interval` epochs and at the end of the run.

    If there is a wandb run, a checkpoint is uploaded every `wandb_checkpoint_interval` epochs; 0 for never.
    """

    after = ("evaluation", "EvaluationHook")

    def __init__(
        self, checkpoint_manager: CheckpointManager, checkpoint_interval: int, wandb_checkpoint_interval: int
    ) -> None:
        if not isinstance(checkpoint_manager, CheckpointManager):
            raise CheckpointError(f"a CheckpointHook needs a CheckpointManager first, not {checkpoint_manager!r}")
        super().__init__(checkpoint_manager, None)
        checkpoint_manager.options = replace(
            checkpoint_manager.options, every=checkpoint_interval, wandb_every=wandb_checkpoint_interval
        )
        self.checkpoint_interval = checkpoint_interval
        self.wandb_checkpoint_interval = wandb_checkpoint_interval
        self.latest_wandb_uri: str | None = None
        self._restored: CheckpointRecord | None = None
        self._given: dict[str, Any] = {}

    def use_emit(self, emit: Emit) -> None:
        """Emit events through `emit`. A trainer calls this on every hook that has it, when the hook is added."""
        self._events = emit

    def on_training_start(self, trainer_state: TrainerState) -> Any | None:
        """Load the newest valid checkpoint, if `state.resume` is set. Returns the loaded policy, or None.

        A trainer that the hook was added to calls it.
        """
        self._restored = super().restore_training_run(trainer_state)
        return None if self._restored is None else trainer_state.policy

    @hookimpl
    def restore_training_run(self, state: TrainerState) -> CheckpointRecord | None:
        self._restored, self._given = None, {}
        policy = self.on_training_start(state)
        if policy is not None and policy is not state.policy:
            state.policy.load_state_dict(policy if isinstance(policy, Mapping) else policy.state_dict())
        return self._restored

    def on_epoch_end(  # type: ignore[override]  # the signature of a TrainerHook
        self, policy: Any, optimizer: Any, trainer_state: TrainerState, eval_scores: Any, wandb_run: Any
    ) -> None:
        """Save at intervals. The policy, optimizer and wandb run given here are also used at the end of the run.

        A checkpoint has all scores of the state, so the summary in `eval_scores` is not used.
        """
        del eval_scores
        self._given = {"policy": policy, "optimizer": optimizer, "wandb_run": wandb_run}
        super().on_epoch_end(trainer_state)

    def _saved_state(self, state: TrainerState) -> TrainerState:
        own = {name: self._given.get(name) for name in ("policy", "optimizer")}
        others = {n: value for n, value in own.items() if value is not None and value is not getattr(state, n)}
        return replace(state, **others) if others else state

    def _wandb_run(self, state: TrainerState) -> Any | None:
        return self._given.get("wandb_run") or super()._wandb_run(state)

    def uploaded(self, state: TrainerState, uri: str) -> None:
        super().uploaded(state, uri)
        self.latest_wandb_uri = uri
