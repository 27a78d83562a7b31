"""`IntegratedRewardSystem`: rewards, verification and filtering of a batch of episodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import not_
from types import TracebackType
from typing import Any

import numpy as np

from hookline.plugin_manager.manager import PluginManager
from hookline.rewards.config import IntegratedRewardConfig
from hookline.rewards.external import RewardFunction, lesson_scores
from hookline.rewards.features import Column, Flags
from hookline.rewards.pipeline import VerifierPipeline, load_verifiers
from hookline.rewards.processor import RolloutRewardProcessor, Scores, as_records, episodes_of
from hookline.rewards.quality import Filter, Quality, add_results, add_verification, join, measured
from hookline.rewards.scoring import Rewards
from hookline_hookspecs import Episode, EpisodeBatch, Rollout, hookimpl

__all__ = ["IntegratedRewardSystem", "create_integrated_reward_system", "process_episodes_with_quality_control"]


logger = logging.getLogger("hookline.rewards")

Processed = tuple[Rewards, list[Any], list[Any]]


class IntegratedRewardSystem:
    """Rewards, verifies and filters episodes in batches, and emits the reward events.

    It registers itself as a plugin of its manager and reports the quality of the latest episodes in `collect_metrics`.

    :param config: rewards, verification and thresholds.
    :param manager: the run's plugins, including verifiers. By default a new manager with the installed verifiers.
    :param custom_rewards: functions of a prompt and a response.
    """

    def __init__(
        self,
        config: IntegratedRewardConfig | None = None,
        manager: PluginManager | None = None,
        *,
        custom_rewards: Iterable[RewardFunction] = (),
    ) -> None:
        self.config = config or IntegratedRewardConfig()
        self.manager = PluginManager() if manager is None else manager
        self._owns_manager = manager is None
        if self._owns_manager and self.config.enable_verification:
            load_verifiers(self.manager)
        self.processor = RolloutRewardProcessor(
            self.config.reward_config,
            self.manager,
            custom_rewards=custom_rewards,
            compiled=self.config.enable_mlx_compilation,
        )
        self.pipeline = VerifierPipeline(self.manager, on_failure=self.config.reward_config.on_failure)
        self.filter = Filter(self.config)
        self._latest: tuple[Quality, dict[str, float]] | None = None
        self._name = self.manager.register(self)

    def process_episodes(self, episodes: Iterable[Any], given: Scores | None = None) -> Processed:
        """Reward, verify and filter episodes. Returns the rewards in order, the accepted and the rejected episodes.

        The rewards are an `mx.array` if MLX computes them, else a NumPy array. The results of each episode are added by
        `hookline.rewards.quality.add_results`.

        :param given: scores that are already known, as in `RolloutRewardProcessor.process_episode_rewards`.
        """
        returned, quality = self._process(list(episodes), given)
        flags = quality.accepted.tolist()
        accepted, rejected = list(compress(returned, flags)), list(compress(returned, map(not_, flags)))
        return self.processor.as_rewards(quality.rewards), accepted, rejected

    def process_rollout(self, rollout: Rollout) -> Flags:
        """Reward and verify a text rollout. The lesson's rewards are one of the scores, named `lesson`.

        The rollout's `rewards` are replaced by the combined ones. A rejected episode gets NaN, which excludes it from
        its group. So does an episode whose environment failed, which is left out.

        :returns: one flag per episode: whether it is accepted.
        """
        complete = np.array(["failure" not in episode.metadata for episode in rollout.episodes], bool)
        episodes = list(compress(rollout.episodes, complete))
        scores = lesson_scores(rollout.lesson_id, [own.reward for own in episodes], self.config.reward_config)
        _, quality = self._process(episodes, {"lesson": scores})
        accepted, rewards = np.zeros(len(complete), bool), np.full(len(complete), np.nan, np.float32)
        accepted[complete] = quality.accepted
        rewards[complete] = np.where(quality.accepted, quality.rewards, np.nan)
        rollout.arrays["rewards"] = rewards
        return accepted

    def verify(self, episodes: Sequence[Episode]) -> None:
        """Verify episodes that are not trained on. Only their metadata changes, no threshold or metric."""
        if self.config.enable_verification and episodes:
            reports = self.pipeline.verify_episodes(EpisodeBatch(list(episodes)))
            add_verification([episode.metadata for episode in episodes], reports)

    def process_buffer(self, buffer: Any) -> Processed:
        """`process_episodes` for a buffer: an object with `episodes`, or an iterable of episodes."""
        return self.process_episodes(episodes_of(buffer))

    def get_quality_metrics(self, episodes: Iterable[Any]) -> dict[str, float]:
        """`Quality.metrics` and the config's quality measures, for episodes that `process_episodes` returned."""
        processed = list(episodes)
        return Quality.of_episodes(processed).metrics() | measured(self.config.quality_measures, processed)

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float] | None:
        """The quality of the latest episodes, and the current thresholds."""
        if self._latest is None:
            return None
        quality, measures = self._latest
        metrics = quality.metrics() | measures
        metrics["min_reward_threshold"] = self.filter.min_reward_threshold
        metrics["verification_threshold"] = self.filter.verification_threshold
        return {f"rewards/{name}": value for name, value in metrics.items()}

    def thresholds(self) -> dict[str, float]:
        """The thresholds, which may adapt to the data."""
        return {"min_reward": self.filter.min_reward_threshold, "verification": self.filter.verification_threshold}

    def state_dict(self) -> dict[str, Any]:
        """The thresholds and the state of the processor."""
        return {**self.thresholds(), "processor": self.processor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict()`, or from the thresholds alone."""
        self.filter.min_reward_threshold = state["min_reward"]
        self.filter.verification_threshold = state["verification"]
        self.processor.load_state_dict(state.get("processor", {}))

    def close(self) -> None:
        """Unregister from the manager and close connections. It can be called twice."""
        if self.manager.get_plugin(self._name or "") is self:
            self.manager.unregister(self)
        self.processor.close()
        if self._owns_manager:
            self.manager.close()

    def __enter__(self) -> IntegratedRewardSystem:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _process(self, given: Sequence[Any], scores: Scores | None) -> tuple[list[Any], Quality]:
        """The episodes as `process_episodes` returns them, in order, and their quality."""
        returned: list[Any] = []
        parts: list[Quality] = []
        for batch, rewards in self.processor.process_batches(as_records(given), self.config.batch_size, scores):
            own = given[len(returned) : len(returned) + len(batch)]
            returned += self._filter(batch, rewards, own, parts)
        if not parts:
            return [], Quality(np.zeros(0), np.zeros(0, bool))
        quality = join(parts)
        self._latest = quality, measured(self.config.quality_measures, returned)
        return returned, quality

    def _filter(self, batch: EpisodeBatch, rewards: Column, given: Sequence[Any], parts: list[Quality]) -> list[Any]:
        """Verify and filter one batch, append its quality to `parts`, and return its episodes."""
        reports = self.pipeline.verify_episodes(batch) if self.config.enable_verification else None
        passing = self.filter.accepts(rewards, reports)
        reasons = self.filter.reasons(rewards, reports, passing)
        returned = add_results(batch, given, rewards, reports, passing, reasons)
        flags = passing.tolist()
        logger.debug("accepted %d of %d episodes", sum(flags), len(flags))
        self.manager.emit.on_episodes_filtered(
            batch=batch,
            accepted=list(compress(batch.episodes, flags)),
            rejected=list(compress(batch.episodes, map(not_, flags))),
        )
        self.filter.adapt(passing)
        parts.append(Quality.of_batch(rewards, passing, reports))
        return returned


def create_integrated_reward_system(
    config: IntegratedRewardConfig | None = None,
    manager: PluginManager | None = None,
    *,
    custom_rewards: Iterable[RewardFunction] = (),
) -> IntegratedRewardSystem:
    """A system for this config, with the manager's plugins, or the installed verifiers without a manager."""
    return IntegratedRewardSystem(config, manager, custom_rewards=custom_rewards)


def process_episodes_with_quality_control(
    episodes: Iterable[Any], config: IntegratedRewardConfig | None = None
) -> tuple[Rewards, list[Any], list[Any], dict[str, float]]:
    """Process episodes once. Returns the rewards, the accepted, the rejected and the quality metrics of all."""
    with create_integrated_reward_system(config) as system:
        rewards, accepted, rejected = system.process_episodes(episodes)
        return rewards, accepted, rejected, system.get_quality_metrics([*accepted, *rejected])
