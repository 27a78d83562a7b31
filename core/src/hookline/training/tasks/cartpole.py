"""`cartpole`: PPO on CartPole-v1, solved within seconds."""

from __future__ import annotations

from collections import deque
from typing import Final

from hookline.plugin_manager.manager import PluginManager
from hookline.rollout import CurriculumConfig
from hookline.training.config import OptimizerConfig, RolloutConfig, TrainerConfig
from hookline.training.tasks.task import task
from hookline.training.trainer import Trainer
from hookline_hookspecs import Rollout, TrainerState, hookimpl

__all__ = ["UntilSolved", "cartpole"]

SOLVED: Final = 475.0
EPISODES: Final = 100


class UntilSolved:
    """Ends the run once the last 100 training episodes have a mean return of 475."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=EPISODES)

    @hookimpl
    def on_rollout_end(self, rollout: Rollout) -> None:
        self._returns.extend(episode.reward for episode in rollout.episodes if episode.reward is not None)

    @hookimpl
    def on_epoch_end(self, state: TrainerState) -> None:
        mean = sum(self._returns) / EPISODES
        if len(self._returns) == EPISODES and mean >= SOLVED:
            state.stop_reason = f"solved: the last {EPISODES} episodes have a mean return of {mean:.0f}"

    @hookimpl
    def save_plugin_state(self) -> dict[str, list[float]]:
        return {"returns": list(self._returns)}

    @hookimpl
    def load_plugin_state(self, saved: dict[str, dict[str, list[float]]]) -> None:
        self._returns.extend(saved.get("until-solved", {}).get("returns", []))


@task(
    epochs=80,
    losses={
        "ppo_actor": {"entropy": 0.0, "anneal_clip": True},
        "ppo_critic": {"gamma": 0.98, "gae_lambda": 0.8, "clip": None},
    },
    optimizer=OptimizerConfig("adam", learning_rate=3e-3, options={"eps": 1e-5}),
    rollout=RolloutConfig(num_environments=64, steps_per_rollout=64, minibatches=8, update_epochs=3),
)
def cartpole(config: TrainerConfig, plugins: PluginManager) -> Trainer:
    """PPO on CartPole-v1, until it is solved."""
    plugins.register(UntilSolved(), "until-solved")
    lessons = CurriculumConfig(micro_eval_frequency=None, eval_frequency=None)
    return Trainer(config, lessons, plugins=plugins)
