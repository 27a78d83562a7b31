"""From the rollout worker to the reward processor: text is rewarded and verified before the losses see it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hookline.plugin_manager.manager import PluginManager
from hookline.rewards import IntegratedRewardConfig, create_integrated_reward_system
from hookline_hookspecs import Episode, EpisodeBatch, Rollout, hookimpl

__all__ = ["LessonReward", "RolloutRewards"]

logger = logging.getLogger("hookline.training")


class LessonReward:
    """What a lesson's own checker said, as one reward among the others. It goes by the name `lesson`."""

    critical = True

    @hookimpl
    def score_episodes(self, batch: EpisodeBatch) -> Mapping[str, Sequence[float | None]]:
        return {"lesson": [episode.reward for episode in batch]}


class RolloutRewards:
    """The reward processor of a trainer, with the verifiers among the run's plugins.

    An episode that is rejected is not trained on: its reward becomes NaN, which has no say in its group.
    """

    def __init__(self, config: IntegratedRewardConfig, plugins: PluginManager) -> None:
        plugins.register(LessonReward(), "lesson-reward")
        if config.enable_verification and not plugins.hook.verify_episodes.get_hookimpls():
            logger.info("episodes are not verified: no verifier is active. pip install hookline-verifiers brings some")
            config = replace(config, enable_verification=False)
        self._system = create_integrated_reward_system(config, plugins)

    def apply(self, rollout: Rollout) -> None:
        """Put the rewards into a rollout, in the place of those that it came with."""
        _, accepted, _ = self._system.process_episodes(rollout.episodes)
        trained = [episode.reward if episode.metadata["accepted"] else np.nan for episode in rollout.episodes]
        rollout.arrays["rewards"] = np.array(trained, np.float32)
        rollout.stats["acceptance_rate"] = len(accepted) / max(len(rollout.episodes), 1)

    def verify(self, episodes: Sequence[Episode]) -> None:
        """Have the verifiers say what they find in episodes that are not trained on. No bound or metric follows it."""
        if self._system.config.enable_verification and episodes:
            reports = self._system.pipeline.verify_episodes(EpisodeBatch(list(episodes)))
            for episode, report in zip(episodes, reports, strict=True):
                episode.metadata |= {
                    "verification_score": report.score,
                    "verification_result": report.result,
                    "verification_message": report.message,
                    "verification_details": report.details,
                }

    def state_dict(self) -> dict[str, Any]:
        """The bounds, which may follow the data."""
        bounds = self._system.filter
        return {"min_reward": bounds.min_reward_threshold, "verification": bounds.verification_threshold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        bounds = self._system.filter
        bounds.min_reward_threshold, bounds.verification_threshold = state["min_reward"], state["verification"]

    def close(self) -> None:
        self._system.close()
