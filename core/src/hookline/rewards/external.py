"""Rewards from functions, plugins, and a reward model behind a URL."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hookline.errors import did_you_mean
from hookline.http.requests import Backoff, RequestError, shown_url, with_retries
from hookline.importing import require
from hookline.plugin_manager.manager import PluginManager
from hookline.rewards.config import TOKEN_VARIABLE, RewardConfig
from hookline.rewards.errors import OnFailure, RewardError, collect_or_raise
from hookline.rewards.features import Column
from hookline_hookspecs import Episode, EpisodeBatch
from hookline_hookspecs.errors import describe_error, shortened

__all__ = [
    "ExternalRewardModel",
    "PendingScores",
    "RewardFunction",
    "all_scores",
    "check_weights",
    "lesson_scores",
    "score_column",
]

logger = logging.getLogger("hookline.rewards")

LONGEST_BACKOFF: Final = 30.0

RewardFunction = Callable[[str, str], float | None]
"""Maps a prompt and a response to a score in 0..1, or None if the reward does not apply."""


def all_scores(
    batch: EpisodeBatch,
    given: Mapping[str, Sequence[float | None]],
    manager: PluginManager,
    functions: Sequence[RewardFunction],
    on_failure: OnFailure,
) -> dict[str, Column]:
    """All scores by the reward's name: known ones, those of plugins (`score_episodes`) and those of functions."""
    columns: dict[str, Column] = {}

    def add(name: str, who: str, scores: Any) -> None:
        if name in columns:
            raise RewardError(f"{who}: another reward is also named {name!r}; rename one of them")
        columns[name] = score_column(who, scores, len(batch))

    for name, scores in given.items():
        add(name, f"reward {name!r}", scores)
    for plugin, result in collect_or_raise(manager, "score_episodes", batch, on_failure):
        for name, scores in result.items():
            add(name, f"reward {name!r} of plugin {plugin!r}", scores)
    for function in functions:
        name = getattr(function, "__name__", type(function).__name__)
        add(name, f"reward {name!r}", _function_scores(name, function, batch, on_failure))
    return columns


def _function_scores(
    name: str, function: RewardFunction, batch: EpisodeBatch, on_failure: OnFailure
) -> list[float | None]:
    scores: list[float | None] = []
    for index, episode in enumerate(batch):
        try:
            scores.append(function(episode.prompt, episode.response))
        except Exception as error:
            if on_failure == "raise":
                raise RewardError(f"reward {name!r} failed on episode {index}: {describe_error(error)}") from error
            scores.append(None)
    return scores


def score_column(who: str, scores: Any, count: int) -> Column:
    """The scores of one reward as a column, with NaN for None. Raises for an invalid score."""
    try:
        values = list(scores)
    except TypeError:
        raise RewardError(f"{who} must have one score for each episode, got {type(scores).__name__}") from None
    if len(values) != count:
        raise RewardError(f"{who} has {len(values)} scores for {count} episodes")
    for index, value in enumerate(values):
        problem = _score_problem(value)
        if problem:
            raise RewardError(f"{who}, episode {index}: {problem}; use None if the reward does not apply")
    return np.array([math.nan if value is None else float(value) for value in values])


def _score_problem(value: Any) -> str | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return f"the score must be a number in 0..1, got {shortened(value)}"
    if math.isnan(number):
        return "the score is NaN"
    return None if 0.0 <= number <= 1.0 else f"the score must be in 0..1, got {number!r}"


def lesson_scores(lesson_id: str | None, rewards: Sequence[float | None], config: RewardConfig) -> list[float | None]:
    """The rewards of a lesson's episodes as scores in 0..1, by `RewardConfig.lesson_range`."""
    if config.lesson_range is not None:
        low, high = config.lesson_range
        return [None if own is None else min(max((own - low) / (high - low), 0.0), 1.0) for own in rewards]
    problems = [_score_problem(own) for own in rewards]
    first = next(filter(None, problems), None)
    if first is not None:
        message = (
            f"the reward of an episode of lesson {lesson_id!r}: {first}; set RewardConfig.lesson_range to the lesson's "
            "rewards that become 0 and 1"
        )
        if config.on_failure == "raise":
            raise RewardError(message)
        logger.warning("%s; %d episodes get no reward from it", message, sum(map(bool, problems)))
    return [None if problem else own for own, problem in zip(rewards, problems, strict=True)]


def check_weights(weights: Mapping[str, float], rewards: Mapping[str, Column]) -> None:
    """Raise if a weight names a reward that does not exist."""
    for name in weights:
        if name not in rewards:
            known = did_you_mean(name, rewards)
            raise RewardError(
                f"RewardConfig.custom_weights has a weight for {name!r}, but there is no such reward{known}"
            )


@dataclass(frozen=True)
class PendingScores:
    """The scores of a batch that the external model is computing."""

    model: ExternalRewardModel
    requests: Sequence[tuple[int, list[Episode], Future[Column]]]
    """Of each request: the number of its first episode, the episodes, and the future of their scores."""

    def column(self) -> Column:
        """Wait for all responses. Returns the scores in the order of the episodes."""
        columns = [self._column_of(*request) for request in self.requests]
        return np.concatenate(columns) if columns else np.zeros(0)

    def cancel(self) -> None:
        """Cancel the requests that have not started."""
        for _, _, future in self.requests:
            future.cancel()

    def _column_of(self, first: int, episodes: list[Episode], future: Future[Column]) -> Column:
        try:
            return future.result()
        except (RewardError, RequestError) as error:
            last = first + len(episodes) - 1
            message = f"external reward model at {self.model.shown_url}, episodes {first} to {last}: {error}"
            if self.model.on_failure == "raise":
                raise RewardError(message) from error
            logger.warning("%s; these episodes get no reward from it", message)
            return np.full(len(episodes), np.nan)


class ExternalRewardModel:
    """Sends requests of `batch_size` episodes, `max_workers` in parallel, and retries transient errors."""

    def __init__(self, config: RewardConfig, url: str) -> None:
        for package in ("httpcore", "tenacity"):
            require(package, "an external reward model", "rewards")
        from hookline.http.client import HTTPClient

        self._config = config
        self.shown_url: Final = shown_url(url)
        self.on_failure: Final[OnFailure] = config.on_failure
        self._backoff = Backoff(config.external_rm_backoff, LONGEST_BACKOFF)
        self._client = HTTPClient(url, TOKEN_VARIABLE, connections=config.max_workers)
        self._pool = ThreadPoolExecutor(config.max_workers, thread_name_prefix="hookline-reward-model")

    @classmethod
    def of(cls, config: RewardConfig) -> ExternalRewardModel | None:
        """The model at the config's URL; None without a URL."""
        return None if config.external_rm_url is None else cls(config, config.external_rm_url)

    def submit(self, batch: EpisodeBatch, first: int = 0) -> PendingScores:
        """Start sending the episodes of a batch, without waiting.

        :param first: the number of the batch's first episode, for error messages.
        """
        size = self._config.batch_size
        chunks = [(start, batch.episodes[start : start + size]) for start in range(0, len(batch), size)]
        requests = [(first + start, chunk, self._pool.submit(self._rewards_of, chunk)) for start, chunk in chunks]
        return PendingScores(self, requests)

    def close(self) -> None:
        """Wait for running requests, within their timeouts, and close the connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def _rewards_of(self, episodes: list[Episode]) -> Column:
        config = self._config
        content = {"episodes": [_as_json(episode) for episode in episodes]}
        began = time.monotonic()
        try:
            response = with_retries(
                lambda: self._client.request_json("POST", content=content, seconds=config.external_rm_timeout),
                self._backoff,
                attempts=config.external_rm_retries + 1,
                patience=config.external_rm_timeout,
            )
        except RequestError as error:
            retry_after = error.retry_after or 0.0
            if retry_after <= config.external_rm_timeout:
                raise
            raise RewardError(
                f"{error}, with a Retry-After of {retry_after:.0f} s, which is longer than external_rm_timeout "
                f"({config.external_rm_timeout} s)"
            ) from error
        logger.debug("the external reward model scored %d episodes in %.3f s", len(episodes), time.monotonic() - began)
        return _read_rewards(response, len(episodes))


def _as_json(episode: Episode) -> dict[str, str | None]:
    return {"prompt": episode.prompt, "response": episode.response, "reference": episode.reference}


def _read_rewards(response: Any, count: int) -> Column:
    rewards = response.get("rewards") if isinstance(response, Mapping) else None
    if not isinstance(rewards, list):
        raise RewardError('the response has no list of "rewards"')
    if any(isinstance(reward, (str, bool)) for reward in rewards):
        raise RewardError('the "rewards" of the response must be numbers or null')
    return score_column("the response", rewards, count)
