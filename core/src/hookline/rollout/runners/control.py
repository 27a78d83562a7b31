"""Shared by the runners of control environments: building a rollout, and recording episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hookline.rollout.errors import LessonError
from hookline_hookspecs import Episode, Rollout
from hookline_hookspecs.errors import shortened

if TYPE_CHECKING:
    import gymnasium

__all__ = ["MOST_FRAMES", "EpisodeRecorder", "control_rollout", "played_episode"]


MOST_FRAMES: Final = 64
"""The maximum number of frames kept of an episode. Longer ones keep every second frame, every fourth, and so on."""


class EpisodeRecorder:
    """Records each step of one episode, with frames if the environment has `render_mode="rgb_array"`."""

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
        """Observations, actions and rewards of each step, and the frames if there are any."""
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
    """Build a rollout from its arrays.

    :param version: the version of the weights.
    :param returns: at every step, the sum of rewards of the episode so far.
    :param lengths: at every step, the number of steps of the episode so far.
    """
    for name in ("rewards", "obs"):
        _check_finite(lesson_id, environment, arrays[name], lengths, name)
    ended = np.nonzero(arrays["terminated"] | arrays["truncated"])
    truncated = arrays["truncated"][ended] & ~arrays["terminated"][ended]
    episodes = [
        Episode(reward=reward, metadata={"length": length, "truncated": cut, "environment": index})
        for reward, length, cut, index in zip(
            returns[ended].tolist(), lengths[ended].tolist(), truncated.tolist(), ended[1].tolist(), strict=True
        )
    ]
    stats = {"steps": float(arrays["rewards"].size), "episodes": float(len(episodes))}
    if episodes:
        stats["mean_reward"] = float(returns[ended].mean())
        stats["mean_length"] = float(lengths[ended].mean())
    return Rollout(lesson_id, version, dict(arrays), episodes, stats)


def played_episode(environment: str, reward: float, length: int, *, truncated: bool) -> Episode:
    """An episode of an evaluation, without its steps."""
    return Episode(reward=reward, metadata={"length": length, "truncated": truncated, "environment_name": environment})


def _check_finite(lesson_id: str, environment: str, array: np.ndarray, lengths: np.ndarray, name: str) -> None:
    """Raise an error if the array, (steps, environments, ...), has a number that is not finite."""
    finite = np.isfinite(array)
    if not finite.all():
        step, index = np.argwhere(~finite)[0][:2]
        raise LessonError(
            f"lesson {lesson_id!r}: environment {environment!r} (index {index}), step {step} of the rollout, step "
            f"{lengths[step, index] - 1} of the episode: {NAMES[name]} is {shortened(array[step, index].tolist())}; "
            "it must be finite"
        )
