"""Keeps what happens in an episode of a Gymnasium environment, pictures too where it draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import gymnasium

__all__ = ["MOST_FRAMES", "EpisodeRecorder"]

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
