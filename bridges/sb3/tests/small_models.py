"""Small models of all five algorithms, in an environment in which a resume can be exact.

Its episodes are all of one length and begin in one state, and each rollout is one episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3

from hookline.plugin_manager.settings import Settings

LENGTH = 8
"""Steps of an episode: as many as the rollouts of these tests have."""


class Line(gymnasium.Env[Any, Any]):
    """Move along a line towards 1. The reward is how near it is."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)

    def __init__(self, *, discrete: bool) -> None:
        spaces = gymnasium.spaces
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._is_discrete = discrete
        self._place, self._step = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._step = 0.0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += 0.2 * (2 * int(action) - 1 if self._is_discrete else float(action[0]))
        self._step += 1
        return self._seen(), 1.0 - abs(1.0 - self._place), False, self._step == LENGTH, {}

    def _seen(self) -> Any:
        return np.array([self._place, self._step / LENGTH], np.float32)


OFF_POLICY: Mapping[str, Any] = {"learning_starts": LENGTH, "train_freq": LENGTH, "gradient_steps": 4, "batch_size": 8}
SMALL: Mapping[str, Any] = {"seed": 3, "device": "cpu"}

ALGORITHMS: Mapping[str, tuple[Any, bool, Mapping[str, Any]]] = {
    "PPO": (PPO, True, {"n_steps": LENGTH, "batch_size": 4, "n_epochs": 2}),
    "A2C": (A2C, True, {"n_steps": LENGTH}),
    "DQN": (DQN, True, {**OFF_POLICY, "buffer_size": 64, "target_update_interval": 12}),
    "SAC": (SAC, False, {**OFF_POLICY, "buffer_size": 64}),
    "TD3": (TD3, False, {**OFF_POLICY, "buffer_size": 64}),
}
"""The class, whether it takes discrete actions, and settings with which each rollout is one episode of `Line`."""


def make_model(name: str, env: Any = None, **changes: Any) -> Any:
    """A new model, always with the same weights."""
    algorithm, discrete, settings = ALGORITHMS[name]
    torch.set_num_threads(1)
    return algorithm(
        "MlpPolicy", env or Line(discrete=discrete), policy_kwargs={"net_arch": [8]}, **{**SMALL, **settings, **changes}
    )


def only(**options: Mapping[str, Any]) -> Settings:
    """Only these of the installed plugins, with these options."""
    return Settings(allowed=dict.fromkeys(options, "this test"), options={n: dict(own) for n, own in options.items()})


def weights_of(model: Any) -> dict[str, list[Any]]:
    return {name: own.tolist() for name, own in model.policy.state_dict().items()}
