"""From the arrays of a control rollout, (steps, copies) each, to its episodes and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hookline.rollout.errors import LessonError
from hookline_hookspecs import Episode, Rollout

__all__ = ["check_rewards", "control_rollout", "played_episode"]


def control_rollout(
    lesson_id: str, environment: str, arrays: Mapping[str, Any], returns: np.ndarray, lengths: np.ndarray
) -> Rollout:
    """A rollout from its arrays.

    :param returns: the sum of rewards of the episode so far, at every step.
    :param lengths: the number of steps of the episode so far, at every step.
    """
    check_rewards(lesson_id, environment, arrays["rewards"])
    ended = np.nonzero(arrays["terminated"] | arrays["truncated"])
    truncated = arrays["truncated"][ended] & ~arrays["terminated"][ended]
    episodes = [
        Episode(reward=reward, metadata={"length": length, "truncated": cut, "environment": copy})
        for reward, length, cut, copy in zip(
            returns[ended].tolist(), lengths[ended].tolist(), truncated.tolist(), ended[1].tolist(), strict=True
        )
    ]
    stats = {"steps": float(arrays["rewards"].size), "episodes": float(len(episodes))}
    if episodes:
        stats["mean_reward"] = float(returns[ended].mean())
        stats["mean_length"] = float(lengths[ended].mean())
    return Rollout(lesson_id=lesson_id, arrays=dict(arrays), episodes=episodes, stats=stats)


def played_episode(environment: str, reward: float, length: int, *, truncated: bool) -> Episode:
    """An episode of an evaluation, without what happened in it."""
    return Episode(reward=reward, metadata={"length": length, "truncated": truncated, "environment_name": environment})


def check_rewards(lesson_id: str, environment: str, rewards: np.ndarray) -> None:
    """Raise an error when a reward, (steps, copies) each, is not a finite number."""
    finite = np.isfinite(rewards)
    if not finite.all():
        step, copy = np.argwhere(~finite)[0]
        raise LessonError(
            f"lesson {lesson_id!r}: environment {environment!r} (copy {copy}) gave the reward {rewards[step, copy]} "
            f"at step {step} of the rollout; a reward must be a finite number"
        )
