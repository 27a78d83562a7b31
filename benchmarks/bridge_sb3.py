"""What Hookline's callback with five plugins costs a run of stable-baselines3.

    python benchmarks/bridge_sb3.py

PPO on CartPole with a policy so wide that a gradient step takes some 20 ms on one thread. Runs with the callback and
without take turns; of each kind the fastest run counts. A run is timed from its second rollout to its last, so that
imports and the opening of files are left out. No evaluation falls into that time: what it takes is asked for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from hookline.plugin_manager.settings import read_settings
from hookline_sb3 import HooklineCallback

__all__ = ["seconds_per_update"]

STEPS_PER_UPDATE: Final = 4
OPTIONS: Final = ("evaluation.every=1000000", "evaluation.n_examples=1", "metrics.progress=off")


class Clock(BaseCallback):  # type: ignore[misc, unused-ignore]
    """Remembers when each rollout began."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def _on_rollout_start(self) -> None:
        self.times.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True

    @property
    def seconds(self) -> float:
        """The mean time from one rollout's beginning to the next, without the first, which warms up."""
        return (self.times[-1] - self.times[1]) / (len(self.times) - 2)


def _train(updates: int, folder: Path | None) -> float:
    model = PPO(
        "MlpPolicy",
        "CartPole-v1",
        n_steps=64,
        batch_size=64,
        n_epochs=STEPS_PER_UPDATE,
        policy_kwargs={"net_arch": [640, 640]},
        seed=0,
        device="cpu",
    )
    clock = Clock()
    if folder is None:
        model.learn(64 * updates, callback=clock)
    else:
        settings = read_settings(option_arguments=OPTIONS)
        with HooklineCallback(folder, settings=settings) as hookline:
            callbacks: list[Any] = [clock, hookline]
            model.learn(64 * updates, callback=callbacks)
    return clock.seconds


def seconds_per_update(updates: int = 25, rounds: int = 4) -> Mapping[str, float]:
    """Seconds of a rollout of 64 environment steps and four gradient steps, `without` and `with` the callback."""
    torch.set_num_threads(1)
    best = {"without": float("inf"), "with": float("inf")}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            best["without"] = min(best["without"], _train(updates, None))
            best["with"] = min(best["with"], _train(updates, Path(folder) / str(number)))
    return best


if __name__ == "__main__":
    seconds = seconds_per_update()
    for name, value in seconds.items():
        print(f"{name:8} {1000 * value:.1f} ms an update of {STEPS_PER_UPDATE} gradient steps")
    print(f"slower by {100 * (seconds['with'] / seconds['without'] - 1):.1f} %")
