"""`RolloutRewardProcessor`: one reward for each episode of a rollout, a batch at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib import resources
from types import TracebackType

import numpy as np

from hookline.plugin_manager.manager import PluginManager
from hookline.rewards.config import RewardConfig
from hookline.rewards.episodes import as_records
from hookline.rewards.errors import RewardError
from hookline.rewards.external import (
    Answers,
    ExternalRewardModel,
    RewardFunction,
    all_scores,
    check_weights,
)
from hookline.rewards.features import Column, FeatureTable
from hookline.rewards.measurements import measure
from hookline.rewards.phrases import PhraseList
from hookline.rewards.scoring import Rewards, scorer_for
from hookline_hookspecs import Episode, EpisodeBatch

__all__ = ["RolloutRewardProcessor", "Scores", "create_rollout_reward_processor"]

logger = logging.getLogger("hookline.rewards")

Scores = Mapping[str, Sequence[float | None]]
"""A score for each episode, None where it does not apply, by the reward's name."""


class RolloutRewardProcessor:
    """Rewards episodes by length, keywords, perplexity and accuracy, by custom rewards and by an external model.

    :param config: weights, targets, and where the external reward model is.
    :param manager: emits `pre_rewards`, `score_episodes` and `post_rewards`; without one there are no plugins.
    :param custom_rewards: functions of a prompt and a response; a function's name is the reward's.
    :param compiled: compute with MLX where it is installed.
    """

    def __init__(
        self,
        config: RewardConfig | None = None,
        manager: PluginManager | None = None,
        *,
        custom_rewards: Iterable[RewardFunction] = (),
        compiled: bool = True,
    ) -> None:
        self.config = config or RewardConfig()
        self.manager = manager or PluginManager()
        self._custom_rewards: Sequence[RewardFunction] = list(custom_rewards)
        self._scorer = scorer_for(compiled=compiled)
        self._external = ExternalRewardModel.of(self.config)

    def process_episode_rewards(self, episodes: Iterable[object], given: Scores | None = None) -> Rewards:
        """The reward of each episode, in 0..1 and in their order; NaN where no reward with a weight applies.

        Episodes are records or dictionaries. Records are given their reward as well.

        :param given: scores in 0..1 that are known already, by the reward's name, such as `lesson` for what a lesson's
            checker said. They are weighed like custom rewards.
        """
        records = as_records(list(episodes))
        columns = [column for _, column in self.process_batches(records, self.config.batch_size, given)]
        return self.as_rewards(np.concatenate(columns) if columns else np.zeros(0))

    def process_batches(
        self, records: list[Episode], size: int, given: Scores | None = None
    ) -> Iterator[tuple[EpisodeBatch, Column]]:
        """Reward episodes so many at a time: each batch with its rewards, as a column that MLX has no part in.

        Where an external model is asked, the requests for all batches are sent before the first batch is rewarded, so
        that they run side by side.
        """
        for name, scores in (given or {}).items():
            if len(scores) != len(records):
                raise RewardError(f"reward {name!r}: {len(scores)} scores were given for {len(records)} episodes")
        starts = range(0, len(records), size)
        with ExitStack() as requests:
            begun: Iterable[tuple[EpisodeBatch, Answers | None]] = (
                self._begin(EpisodeBatch(records[start : start + size]), start, requests) for start in starts
            )
            if self._external:
                begun = list(begun)
            for start, (batch, answers) in zip(starts, begun, strict=True):
                own = {name: scores[start : start + size] for name, scores in (given or {}).items()}
                yield batch, self._reward(batch, own, answers)

    def as_rewards(self, column: Column) -> Rewards:
        """A column as it is returned to the user: an `mx.array` where MLX computes."""
        rewards = self._scorer.as_rewards(column)
        logger.debug("%d rewards: shape %s, dtype %s", len(column), rewards.shape, rewards.dtype)
        return rewards

    def _begin(self, batch: EpisodeBatch, first: int, requests: ExitStack) -> tuple[EpisodeBatch, Answers | None]:
        """Announce a batch, and ask the external model about it, which answers while this process does the rest."""
        batch.features = features = FeatureTable.of(batch, self.manager.get_plugins())
        features.request(hedges())
        self.manager.emit.pre_rewards(batch=batch)
        if self._external is None:
            return batch, None
        answers = self._external.ask(batch, first)
        requests.callback(answers.cancel)
        return batch, answers

    def _reward(self, batch: EpisodeBatch, given: Scores, answers: Answers | None) -> Column:
        began = time.perf_counter()
        columns = measure(batch, FeatureTable.of(batch), self.config, hedges())
        others = all_scores(batch, given, self.manager, self._custom_rewards, self.config.on_failure)
        check_weights(self.config.custom_weights, others)
        weights = [self.config.custom_weights.get(name, 1.0) for name in others]
        scores = list(others.values())
        if answers is not None:
            scores.append(answers.column())
            weights.append(self.config.external_rm_weight)
        rewards = self._scorer.score(columns, scores, [*self._built_in_weights(), *weights])
        values = rewards.tolist()
        for episode, reward in zip(batch.episodes, values, strict=True):
            episode.reward = reward
        if logger.isEnabledFor(logging.DEBUG):
            self._log(rewards, others, time.perf_counter() - began)
        self.manager.emit.post_rewards(batch=batch, rewards=values)
        return rewards

    def _log(self, rewards: Column, others: Mapping[str, Column], seconds: float) -> None:
        applied = rewards[~np.isnan(rewards)]
        found = (
            f"from {applied.min():.3f} to {applied.max():.3f}, mean {applied.mean():.3f}" if len(applied) else "none"
        )
        logger.debug(
            "rewarded a batch of %d episodes by %s in %.1f ms: %s; %d without a reward; custom rewards: %s",
            len(rewards),
            self._scorer.name,
            seconds * 1e3,
            found,
            len(rewards) - len(applied),
            ", ".join(others) or "none",
        )

    def _built_in_weights(self) -> list[float]:
        config = self.config
        return [config.length_weight, config.keyword_weight, config.perplexity_weight, config.accuracy_weight]

    def close(self) -> None:
        """End the connections to the external reward model."""
        if self._external:
            self._external.close()

    def __enter__(self) -> RolloutRewardProcessor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def create_rollout_reward_processor(
    config: RewardConfig | None = None,
    manager: PluginManager | None = None,
    *,
    custom_rewards: Iterable[RewardFunction] = (),
) -> RolloutRewardProcessor:
    """A processor for this config, whose plugins are those of the manager."""
    return RolloutRewardProcessor(config, manager, custom_rewards=custom_rewards)


@cache
def hedges() -> PhraseList:
    """The phrases that take from the accuracy of a response whose right answer is not known."""
    text = resources.files("hookline.rewards").joinpath("data/hedges.txt").read_text(encoding="utf-8")
    return PhraseList.of_lines("hedges", text)
