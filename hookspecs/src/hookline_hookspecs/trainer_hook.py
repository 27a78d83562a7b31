"""`TrainerHook`: methods named after moments of training, each with the arguments it wants.

    class Reporter(TrainerHook):
        def on_epoch_end(self, losses_stats, policy, trainer_state):
            print(trainer_state.epoch, losses_stats)

    trainer.add_hook(Reporter())

What a method asks for is found by the name of the argument:

    trainer_state, state    the run's `TrainerState`
    policy, epoch, ...      a field of the state; `losses_stats` is its `loss_stats`
    report_data, ...        what the event itself carries
    rollout_stats           the statistics of the rollout that has ended, named as in the state; elsewhere the state's
    eval_scores             an `EvalRewardSummary`: that of the evaluation hook that was added, else one of the state's
    checkpoint_hook, ...    another hook, by its class or a base of it in snake case; None where none was added
    stats_client, wandb_run what a hook or plugin has under this name, or None
    emit                    announces events

A method marked with `@hookimpl(...)` is an implementation as on a plugin, with its schedule, order and background work,
and may take arguments by name as well. `critical`, `on_error`, `after`, `before` and `requires` on the class say what
they say on a plugin; a trainer hook is named there by its class or a base of it, such as `CheckpointHook`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hookline_hookspecs.markers import Scope

__all__ = ["TrainerHook"]


class TrainerHook:
    """Base of hooks in this style. Override a moment below, or add a method named after any other event."""

    scope: ClassVar[Scope] = "driver"
    """Where methods without a mark are called: on rank 0 only, unless a class says `every_rank`."""

    def on_training_start(self, *args: Any, **kwargs: Any) -> Any:
        """The run begins. A policy that is returned is trained on from: its weights become the trained policy's."""

    def on_new_training_run(self, *args: Any, **kwargs: Any) -> Any:
        """The run begins: the event's own name for `on_training_start`."""

    def on_rollout_start(self, *args: Any, **kwargs: Any) -> Any:
        """A rollout is about to be made."""

    def on_rollout_end(self, *args: Any, **kwargs: Any) -> Any:
        """A rollout has been made."""

    def on_mb_end(self, *args: Any, **kwargs: Any) -> Any:
        """A gradient step has been taken."""

    def on_train_phase_end(self, *args: Any, **kwargs: Any) -> Any:
        """The epoch's gradient steps have been taken."""

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> Any:
        """An epoch is complete."""
