"""`RolloutRewardProcessor`: computes one reward for each episode of a rollout, in batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import cache
from importlib import resources
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hookline.importing import require
from hookline.plugin_manager.manager import PluginManager
from hookline.rewards.config import POLICY, RewardConfig
from hookline.rewards.errors import RewardError
from hookline.rewards.external import (
    ExternalRewardModel,
    PendingScores,
    RewardFunction,
    all_scores,
    check_weights,
)
from hookline.rewards.features import Column, FeatureTable
from hookline.rewards.measurements import measure, recorded_logprobs
from hookline.rewards.phrases import PhraseList
from hookline.rewards.scoring import Rewards, rewards_of_logits, scorer_for
from hookline_hookspecs import Episode, EpisodeBatch

if TYPE_CHECKING:
    from hookline.rewards.models import ScoringModel

__all__ = ["RolloutRewardProcessor", "Scores", "as_records", "create_rollout_reward_processor", "episodes_of"]

logger = logging.getLogger("hookline.rewards")

FIELDS: Final = frozenset(field.name for field in fields(Episode))

Scores = Mapping[str, Sequence[float | None]]
"""By the reward's name, a score for each episode, None if the reward does not apply to it."""


class RolloutRewardProcessor:
    """Rewards episodes by length, keywords, perplexity, accuracy, custom rewards, and models here or elsewhere.

    :param config: weights, targets, and the models.
    :param manager: emits `pre_rewards`, `score_episodes` and `post_rewards`; by default there are no plugins.
    :param custom_rewards: functions of a prompt and a response. A reward has its function's name.
    :param compiled: compute with MLX if it is installed.
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
        self._models = _load_models(self.config)

    def process_episode_rewards(self, episodes: Iterable[object], given: Scores | None = None) -> Rewards:
        """The reward of each episode in order, in 0..1; NaN if no reward with a weight applies.

        Episodes are `Episode` records or dictionaries. The `reward` of a record is set as well.

        :param given: scores in 0..1 that are already known, by the reward's name, such as `lesson` for the score of a
            lesson's checker. They are weighted like custom rewards.
        """
        records = as_records(list(episodes))
        columns = [column for _, column in self.process_batches(records, self.config.batch_size, given)]
        return self.as_rewards(np.concatenate(columns) if columns else np.zeros(0))

    def process_batches(
        self, records: list[Episode], size: int, given: Scores | None = None
    ) -> Iterator[tuple[EpisodeBatch, Column]]:
        """Reward episodes in batches of `size`. Yields each batch with its rewards, as a NumPy array.

        With an external model, the requests of all batches are sent before the first batch is rewarded, so that they
        run in parallel. Models score all episodes first, since they make batches by length.
        """
        for name, scores in (given or {}).items():
            if len(scores) != len(records):
                raise RewardError(f"reward {name!r}: {len(scores)} scores were given for {len(records)} episodes")
        starts = range(0, len(records), size)
        with ExitStack() as requests:
            begun: Iterable[tuple[EpisodeBatch, PendingScores | None]] = (
                self._begin(EpisodeBatch(records[start : start + size]), start, requests) for start in starts
            )
            if self._external or self._models:
                begun = list(begun)
            by_models = self._scores_of_models(records)
            for start, (batch, pending) in zip(starts, begun, strict=True):
                part = slice(start, start + size)
                own = {name: scores[part] for name, scores in (given or {}).items()}
                models = {option: column[part] for option, column in by_models.items()}
                yield batch, self._reward(batch, own, models, pending)

    def as_rewards(self, column: Column) -> Rewards:
        """Rewards as returned to the user: an `mx.array` if MLX computes them, else a NumPy array."""
        rewards = self._scorer.as_rewards(column)
        logger.debug("%d rewards: shape %s, dtype %s", len(column), rewards.shape, rewards.dtype)
        return rewards

    def _begin(self, batch: EpisodeBatch, first: int, requests: ExitStack) -> tuple[EpisodeBatch, PendingScores | None]:
        """Emit `pre_rewards` and send the batch to the external model, which works in parallel with this process."""
        batch.features = features = FeatureTable.of(batch, self.manager.get_plugins())
        features.request(hedges())
        self.manager.emit.pre_rewards(batch=batch)
        if self._external is None:
            return batch, None
        pending = self._external.submit(batch, first)
        requests.callback(pending.cancel)
        return batch, pending

    def _scores_of_models(self, records: Sequence[Episode]) -> dict[str, Column]:
        began = time.perf_counter()
        scores = {option: model.scores(records) for option, model in self._models.items()}
        if scores:
            logger.debug(
                "%s scored %d episodes in %.3f s", " and ".join(scores), len(records), time.perf_counter() - began
            )
        return scores

    def _reward(
        self, batch: EpisodeBatch, given: Scores, models: Mapping[str, Column], pending: PendingScores | None
    ) -> Column:
        began = time.perf_counter()
        logprobs = models.get("perplexity_model")
        if logprobs is None:
            logprobs = recorded_logprobs(batch.episodes, self.config)
        columns = measure(batch, FeatureTable.of(batch), self.config, hedges(), logprobs)
        others = all_scores(batch, given, self.manager, self._custom_rewards, self.config.on_failure)
        check_weights(self.config.custom_weights, others)
        weights = [self.config.custom_weights.get(name, 1.0) for name in others]
        scores = list(others.values())
        if "reward_model" in models:
            scores.append(rewards_of_logits(models["reward_model"], self.config.reward_model_range))
            weights.append(self.config.reward_model_weight)
        if pending is not None:
            scores.append(pending.column())
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
        statistics = (
            f"from {applied.min():.3f} to {applied.max():.3f}, mean {applied.mean():.3f}" if len(applied) else "none"
        )
        logger.debug(
            "rewarded a batch of %d episodes by %s in %.1f ms: %s; %d without a reward; custom rewards: %s",
            len(rewards),
            self._scorer.name,
            seconds * 1e3,
            statistics,
            len(rewards) - len(applied),
            ", ".join(others) or "none",
        )

    def _built_in_weights(self) -> list[float]:
        config = self.config
        return [config.length_weight, config.keyword_weight, config.perplexity_weight, config.accuracy_weight]

    def state_dict(self) -> dict[str, Any]:
        """The scores that models remember, by the option that names the model."""
        return {option: model.state_dict() for option, model in self._models.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for option, model in self._models.items():
            if option in state:  # a resumed run may have other models
                model.load_state_dict(state[option])

    def close(self) -> None:
        """Close the connections to the external reward model."""
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
    """A processor for this config, with the manager's plugins."""
    return RolloutRewardProcessor(config, manager, custom_rewards=custom_rewards)


def _load_models(config: RewardConfig) -> dict[str, ScoringModel]:
    """The models, by the option that names them."""
    options = {
        "perplexity_model": None if config.perplexity_model == POLICY else config.perplexity_model,
        "reward_model": config.reward_model,
    }
    folders = {option: folder for option, folder in options.items() if folder is not None}
    if not folders:
        return {}
    require("transformers", f"RewardConfig.{next(iter(folders))}")
    from hookline.rewards.models import PerplexityModel, RewardModel

    kinds: dict[str, type[ScoringModel]] = {"perplexity_model": PerplexityModel, "reward_model": RewardModel}
    return {option: kinds[option](option, folder, config) for option, folder in folders.items()}


def episodes_of(buffer: Any) -> list[Any]:
    """The episodes of a buffer: its `episodes`, or the items of the buffer itself."""
    episodes = getattr(buffer, "episodes", buffer)
    if isinstance(episodes, (str, bytes, Mapping)) or not isinstance(episodes, Iterable):
        raise RewardError(
            f"{type(buffer).__name__} is not a buffer: a buffer has a list `episodes`, or is a list of episodes"
        )
    return list(episodes)


def as_records(episodes: Sequence[Any]) -> list[Episode]:
    """The episodes as `Episode` records. Keys of a dictionary that are not fields go into the metadata."""
    records = [
        episode if type(episode) is Episode else _as_record(index, episode) for index, episode in enumerate(episodes)
    ]
    for index, record in enumerate(records):
        if type(record.response) is not str or type(record.prompt) is not str:
            _check_texts(index, record.prompt, record.response)
    return records


def _as_record(index: int, episode: Any) -> Episode:
    if isinstance(episode, Episode):
        return episode
    if not isinstance(episode, Mapping):
        raise RewardError(f"episode {index} must be an Episode or a dictionary, got {type(episode).__name__}")
    if "response" not in episode and "turns" not in episode:
        raise RewardError(f"episode {index} has no 'response'; it has {', '.join(map(repr, episode)) or 'nothing'}")
    prompt, response = episode.get("prompt", ""), episode.get("response", "")
    if type(prompt) is not str or type(response) is not str:
        _check_texts(index, prompt, response)
    metadata = episode.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise RewardError(f"episode {index}: metadata must be a dictionary, got {type(metadata).__name__}")
    known = {key: value for key, value in episode.items() if key in FIELDS}
    known["metadata"] = {key: value for key, value in episode.items() if key not in FIELDS} | dict(metadata or {})
    return Episode(**known)


def _check_texts(index: int, prompt: Any, response: Any) -> None:
    for name, text in {"prompt": prompt, "response": response}.items():
        if not isinstance(text, str):
            raise RewardError(f"episode {index}: {name} must be a string, got {type(text).__name__}")


@cache
def hedges() -> PhraseList:
    """Phrases that lower the accuracy of a response without a reference answer."""
    text = resources.files("hookline.rewards").joinpath("data/hedges.txt").read_text(encoding="utf-8")
    return PhraseList.of_lines("hedges", text)
