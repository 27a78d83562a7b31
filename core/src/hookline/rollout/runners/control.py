"""What runners of control environments share: the arrays of a rollout, and recorded episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hookline.rollout.environments.outcomes import shortened
from hookline.rollout.errors import LessonError
from hookline_hookspecs import Episode, Rollout

if TYPE_CHECKING:
    import gymnasium

__all__ = ["MOST_FRAMES", "EpisodeRecorder", "control_rollout", "played_episode"]


MOST_FRAMES: Final = 64
"""How many pictures are kept of an episode; of a longer one every second, every fourth and so on."""


class EpisodeRecorder:
    """Told of each step of one episode. An environment made with `render_mode="rgb_array"` is asked for pictures."""

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        self._environment = environment
        self._renders = environment.render_mode == "rgb_array"
        self._obs: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._frames: list[np.ndarray] = []
        self._stride = 1

    def before_step(self, obs: np.ndarray, action: np.ndarray) -> None:
        if self._renders and len(self._obs) % self._stride == 0:
            self._frames.append(np.array(self._environment.render(), np.uint8))
            if len(self._frames) > MOST_FRAMES:
                self._frames = self._frames[::2]
                self._stride *= 2
        self._obs.append(obs.copy())
        self._actions.append(action)

    def after_step(self, reward: float) -> None:
        self._rewards.append(reward)

    def arrays(self) -> dict[str, np.ndarray]:
        """Observations, actions and rewards, one for each step, and the pictures where there are any."""
        arrays = {
            "obs": np.stack(self._obs),
            "actions": np.stack(self._actions),
            "rewards": np.array(self._rewards, np.float32),
        }
        return {**arrays, "frames": np.stack(self._frames)} if self._frames else arrays


NAMES: Final = {"rewards": "the reward", "obs": "the observation"}


def control_rollout(
    lesson_id: str, version: int, environment: str, arrays: Mapping[str, Any], returns: np.ndarray, lengths: np.ndarray
) -> Rollout:
    """A rollout from its arrays.

    :param version: that of the weights that made it.
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
    return Rollout(lesson_id, version, dict(arrays), episodes, stats)


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
