"""Events of rollout workers: they start, play turns, make rollouts, get new weights, are lost, stop.

A trainer announces its rollouts in its own process and thread, wherever they are made. Workers in other processes or
threads have plugins of their own, and emit only what happens there: their start, turns, new weights, rewards, and their
stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline_hookspecs.context import HookContext
from hookline_hookspecs.episodes import Episode, Rollout, Turn
from hookline_hookspecs.markers import hookspec

__all__ = [
    "on_curriculum_update",
    "on_rollout_end",
    "on_rollout_start",
    "on_turn_end",
    "on_weights_updated",
    "on_worker_lost",
    "on_worker_restarted",
    "on_worker_start",
    "on_worker_stop",
]


@hookspec(scope="worker")
def on_worker_start(context: HookContext) -> None:
    """A rollout worker is ready.

    When: once, before its first rollout.
    Emitted by: rollout worker.
    Where: every worker process, rollout thread.
    Args:
        context: the worker, at the step it starts from.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="rollout", starts=True)
def on_rollout_start(context: HookContext) -> None:
    """A rollout is about to be made.

    When: after a lesson has been sampled, before it is played; before the wait for a rollout that is made elsewhere.
    Emitted by: rollout worker.
    Where: every rank, training thread.
    Args:
        context: the worker, its step and the lesson; no lesson if several are being played.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(scope="worker")
def on_turn_end(context: HookContext, episode: Episode, turn: Turn) -> None:
    """A turn was added to a conversation.

    When: in rollouts of text, not in evaluations. After each response of the policy, before the environment reads it,
        and after each message of the environment, before the policy reads it.
    Emitted by: rollout worker.
    Where: every worker process, rollout thread.
    Args:
        context: the worker, its step and the lesson.
        episode: the conversation so far: its turns, group and metadata. Its tokens and reward come with its end. An
            implementation may write to `metadata`, and end the conversation by `metadata["stop_reason"] = "why"`. The
            environment is then closed and reads no further response. The reward is the one that the implementation
            sets, such as `episode.reward = 0.0`, or None, as for a conversation that cannot be scored.
        turn: the new turn, which is also the last of `episode.turns`.
    Returns: ignored.
    Added: 0.2.
    """


@hookspec(clock="rollout")
def on_rollout_end(context: HookContext, rollout: Rollout) -> None:
    """A rollout has been made.

    When: after each rollout is made and rewarded, before the trainer gets it.
    Emitted by: rollout worker.
    Where: every rank, training thread.
    Args:
        context: the worker, its step, the lesson, and the rollout's statistics as metadata.
        rollout: the episodes and arrays, with the version of the weights that made them.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="rollout", starts=True, scope="worker")
def on_weights_updated(context: HookContext, version: int) -> None:
    """The worker has new weights.

    When: after the weights are loaded, before the first rollout with them; where a trainer publishes them, too.
    Emitted by: rollout worker.
    Where: every worker process, rollout thread.
    Args:
        context: the worker and its step.
        version: the version of the new weights.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec(clock="rollout")
def on_curriculum_update(context: HookContext, changes: Mapping[str, Any]) -> None:
    """Lessons have been unlocked or have graduated.

    When: after new results have changed the state of a lesson; not when nothing changed.
    Emitted by: rollout worker.
    Where: every rank, training thread.
    Args:
        context: the worker and its step.
        changes: the new state of each lesson that changed, `unlocked` or `graduated`, by lesson.
    Returns: ignored.
    Added: 0.1.
    """


@hookspec
def on_worker_lost(context: HookContext, worker_index: int, reason: str) -> None:
    """A rollout worker has died, or did not answer in time.

    When: when the trainer takes rollouts and finds it. Another worker is being started, and plays its rollout again.
    Emitted by: rollout worker.
    Where: every rank, training thread.
    Args:
        context: the trainer's worker and its step.
        worker_index: the worker that is lost.
        reason: what happened to it, such as "killed by SIGKILL" or "no answer in 60 s".
    Returns: ignored.
    Added: 0.2.
    """


@hookspec
def on_worker_restarted(context: HookContext, worker_index: int) -> None:
    """A new rollout worker has taken the place of one that was lost.

    When: when it has started. It gets the current weights before its first rollout.
    Emitted by: rollout worker.
    Where: every rank, training thread.
    Args:
        context: the trainer's worker and its step.
        worker_index: the index, which is that of the worker that was lost.
    Returns: ignored.
    Added: 0.2.
    """


@hookspec(scope="worker")
def on_worker_stop(context: HookContext) -> None:
    """A rollout worker is about to stop.

    When: once, after its last rollout and evaluation, also when an error stops it. A trainer's worker stops after
        `on_training_complete`, and before `on_training_failed`.
    Emitted by: rollout worker.
    Where: every worker process, rollout thread.
    Args:
        context: the worker, at its last step.
    Returns: ignored.
    Added: 0.1.
    """
