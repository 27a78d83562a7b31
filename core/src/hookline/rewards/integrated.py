"""The integrated system: episodes are rewarded, verified, and divided into accepted and rejected."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, islice
from operator import not_
from types import TracebackType
from typing import Any

import numpy as np

from hookline.plugins.manager import PluginManager
from hookline.rewards.config import IntegratedRewardConfig
from hookline.rewards.custom import RewardFunction
from hookline.rewards.episodes import as_records, episodes_of
from hookline.rewards.features import Column
from hookline.rewards.filtering import Filter
from hookline.rewards.findings import add_findings
from hookline.rewards.installed import load_verifiers
from hookline.rewards.pipeline import VerifierPipeline
from hookline.rewards.processor import RolloutRewardProcessor
from hookline.rewards.quality import Quality, join, measured
from hookline.rewards.scoring import Rewards
from hookline_hookspecs import EpisodeBatch, hookimpl

__all__ = [
    "IntegratedRewardSystem",
    "create_integrated_reward_system",
    "process_episodes_with_quality_control",
]

logger = logging.getLogger("hookline.rewards")

Processed = tuple[Rewards, list[Any], list[Any]]


class IntegratedRewardSystem:
    """Rewards and verifies a batch at a time, emits every event of `rewards`, and keeps what was found.

    It is a plugin of its manager, which offers the quality of the latest episodes in `collect_metrics`.

    :param config: rewards, verification and bounds.
    :param manager: the run's plugins, verifiers among them. Without one the system has a manager of its own, with
        the installed verifiers.
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

    def process_episodes(self, episodes: Iterable[Any]) -> Processed:
        """The rewards of all episodes in their order, the episodes that are accepted, and those that are rejected.

        The rewards are an `mx.array` where MLX computes them, else a NumPy array.
        Both carry what `hookline.rewards.findings` lists: a record in its metadata, a dictionary as a new dictionary
        with these keys.
        """
        given = list(episodes)
        accepted: list[Any] = []
        rejected: list[Any] = []
        parts: list[Quality] = []
        remaining = iter(given)
        for batch, rewards in self.processor.process_batches(as_records(given), self.config.batch_size):
            parts.append(self._filter(batch, rewards, list(islice(remaining, len(batch))), accepted, rejected))
        if not parts:
            return self.processor.as_rewards(np.zeros(0)), accepted, rejected
        quality = join(parts)
        measures = self.config.quality_measures
        self._latest = quality, (measured(measures, [*accepted, *rejected]) if measures else {})
        return self.processor.as_rewards(quality.rewards), accepted, rejected

    def process_buffer(self, buffer: Any) -> Processed:
        """The same for a buffer: anything that has `episodes`, or that is a number of them."""
        return self.process_episodes(episodes_of(buffer))

    def get_quality_metrics(self, episodes: Iterable[Any]) -> dict[str, float]:
        """Numbers about episodes that `process_episodes` has returned: those of `Quality.metrics`, and your own."""
        all_of_them = list(episodes)
        return Quality.of_episodes(all_of_them).metrics() | measured(self.config.quality_measures, all_of_them)

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float] | None:
        """The quality of what was processed last, and the thresholds as they are now."""
        if self._latest is None:
            return None
        quality, measures = self._latest
        metrics = quality.metrics() | measures
        metrics["min_reward_threshold"] = self.filter.min_reward_threshold
        metrics["verification_threshold"] = self.filter.verification_threshold
        return {f"rewards/{name}": value for name, value in metrics.items()}

    def close(self) -> None:
        """Leave the manager, and end what the system has begun. It may be called twice."""
        if self.manager.get_plugin(self._name or "") is self:
            self.manager.unregister(self)
        self.processor.close()
        if self._owns_manager:
            self.manager.close()

    def __enter__(self) -> IntegratedRewardSystem:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _filter(
        self, batch: EpisodeBatch, rewards: Column, given: Sequence[Any], accepted: list[Any], rejected: list[Any]
    ) -> Quality:
        """Verify one batch, and add its episodes to those accepted and rejected so far."""
        reports = self.pipeline.verify_episodes(batch) if self.config.enable_verification else None
        passing = self.filter.accepts(rewards, reports)
        reasons = self.filter.reasons(rewards, reports, passing)
        returned = add_findings(batch, given, rewards, reports, passing, reasons)
        flags = passing.tolist()
        accepted += compress(returned, flags)
        rejected += compress(returned, map(not_, flags))
        logger.debug("accepted %d of %d episodes", sum(flags), len(flags))
        self.manager.emit.on_episodes_filtered(
            batch=batch,
            accepted=list(compress(batch.episodes, flags)),
            rejected=list(compress(batch.episodes, map(not_, flags))),
        )
        self.filter.adapt(passing)
        return Quality.of_batch(rewards, passing, reports)


def create_integrated_reward_system(
    config: IntegratedRewardConfig | None = None,
    manager: PluginManager | None = None,
    *,
    custom_rewards: Iterable[RewardFunction] = (),
) -> IntegratedRewardSystem:
    """A system for this config, whose plugins are those of the manager, or else the installed verifiers."""
    return IntegratedRewardSystem(config, manager, custom_rewards=custom_rewards)


def process_episodes_with_quality_control(
    episodes: Iterable[Any], config: IntegratedRewardConfig | None = None
) -> tuple[Rewards, list[Any], list[Any], dict[str, float]]:
    """Process episodes once: rewards, accepted, rejected, and quality metrics over all of them."""
    with create_integrated_reward_system(config) as system:
        rewards, accepted, rejected = system.process_episodes(episodes)
        return rewards, accepted, rejected, system.get_quality_metrics([*accepted, *rejected])
