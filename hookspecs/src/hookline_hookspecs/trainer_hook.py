"""`TrainerHook`: a class whose methods are named after events, each with the arguments that it needs.

    class Reporter(TrainerHook):
        def on_epoch_end(self, losses_stats, policy, trainer_state):
            print(trainer_state.epoch, losses_stats)

    trainer.add_hook(Reporter())

Arguments are passed by name:

    trainer_state, state    the run's `TrainerState`
    policy, epoch, ...      a field of the state; `losses_stats` is its `loss_stats`
    report_data, ...        an argument of the event
    rollout_stats           in `on_rollout_end`, the statistics of that rollout; elsewhere those of the state
    eval_scores             an `EvalRewardSummary`, from the evaluation hook if one was added, else from the state
    checkpoint_hook, ...    another hook, by the name of its class or a base class in snake case; None if there is none
    stats_client, wandb_run an attribute of another hook or plugin with this name; None if there is none
    emit                    emits events

A method marked with `@hookimpl(...)` works as on a plugin, with its schedule, order and background execution, and can
have the same arguments. `critical`, `on_error`, `after`, `before` and `requires` on the class work as on a plugin. They
name a trainer hook by its class or a base class, such as `CheckpointHook`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hookline_hookspecs.markers import Scope

__all__ = ["TrainerHook"]


class TrainerHook:
    """Base class of trainer hooks. Override a method below, or add one named after any other event."""

    scope: ClassVar[Scope] = "driver"
    """Methods without `@hookimpl` are called on rank 0 only, unless a class sets `every_rank`."""

    hookline_adapter: ClassVar = "hookline.hooks.trainer_hooks:trainer_hook_plugin"
    """What makes a plugin of it, when the settings name its class."""

    def on_training_start(self, *args: Any, **kwargs: Any) -> Any:
        """The run starts. If a policy is returned, its weights are loaded into the trained policy."""

    def on_new_training_run(self, *args: Any, **kwargs: Any) -> Any:
        """The run starts. This is the event behind `on_training_start`."""

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
