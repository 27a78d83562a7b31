"""From the arrays of a control rollout, (steps, copies) each, to its episodes and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hookline.rollout.environments.outcomes import shortened
from hookline.rollout.errors import LessonError
from hookline_hookspecs import Episode, Rollout

__all__ = ["control_rollout", "played_episode"]

NAMES: Final = {"rewards": "the reward", "obs": "the observation"}


def control_rollout(
    lesson_id: str, environment: str, arrays: Mapping[str, Any], returns: np.ndarray, lengths: np.ndarray
) -> Rollout:
    """A rollout from its arrays.

    :param returns: the sum of rewards of the episode so far, at every step.
    :param lengths: the number of steps of the episode so far, at every step.
    """
    for name in ("rewards", "obs"):
        _check_finite(lesson_id, environment, arrays[name], lengths, name)
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


def _check_finite(lesson_id: str, environment: str, array: np.ndarray, lengths: np.ndarray, name: str) -> None:
    """Raise an error when a number of an array, (steps, copies) and more, is not finite."""
    finite = np.isfinite(array)
    if not finite.all():
        step, copy = np.argwhere(~finite)[0][:2]
        raise LessonError(
            f"lesson {lesson_id!r}: environment {environment!r} (copy {copy}), step {step} of the rollout, step "
            f"{lengths[step, copy] - 1} of the episode: {NAMES[name]} is {shortened(array[step, copy].tolist())}; "
            "it must be finite"
        )
