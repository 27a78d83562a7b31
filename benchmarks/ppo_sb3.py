"""stable-baselines3 on CartPole with its zoo's settings, as the contender of `ppo.py`.

python benchmarks/ppo_sb3.py SEED       # until 100 episodes have a mean return of 475; prints steps taken
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class UntilSolved(BaseCallback):  # type: ignore[misc, unused-ignore]
    """Ends the run once the last 100 episodes that training itself played have a mean return of 475."""

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        return not (len(returns) == 100 and sum(returns) / 100 >= 475)


def falling_from(start: float) -> Any:
    """A value that falls in a straight line to zero at the end of the run."""
    return lambda remaining: remaining * start


def solve(seed: int) -> str:
    """How many environment steps it took."""
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=falling_from(1e-3),
        clip_range=falling_from(0.2),
        seed=seed,
        device="cpu",
    )
    steps = 100_000
    model.learn(total_timesteps=steps, callback=UntilSolved())
    return str(model.num_timesteps) if model.num_timesteps < steps else "unsolved"


if __name__ == "__main__":
    print(solve(int(sys.argv[1])))
