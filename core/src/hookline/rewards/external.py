"""An external reward model, asked over HTTP.

Each request is a POST of `{"episodes": [{"prompt": ..., "response": ..., "reference": ...}, ...]}`, and its answer is
`{"rewards": [0.7, null, ...]}`: one number in 0..1 for each episode in the same order, or null where the model has
none. A token in the environment variable HOOKLINE_REWARD_MODEL_TOKEN is sent as a bearer token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hookline.extras import require
from hookline.http.address import shown_url
from hookline.http.retries import Backoff, RequestError, with_retries
from hookline.rewards.config import TOKEN_VARIABLE, OnFailure, RewardConfig
from hookline.rewards.custom import score_column
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column
from hookline_hookspecs import Episode, EpisodeBatch

__all__ = ["Answers", "ExternalRewardModel"]

logger = logging.getLogger("hookline.rewards")

LONGEST_BACKOFF: Final = 30.0


@dataclass(frozen=True)
class Answers:
    """What the model says of a batch, once it has said it."""

    model: ExternalRewardModel
    requests: Sequence[tuple[int, list[Episode], Future[Column]]]
    """The first episode's number, the episodes and the answer to come, of each request."""

    def column(self) -> Column:
        """Wait for all answers and put them in the order of the episodes."""
        columns = [self._column_of(*request) for request in self.requests]
        return np.concatenate(columns) if columns else np.zeros(0)

    def cancel(self) -> None:
        """Give up the requests that have not begun."""
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
            logger.warning("%s; its reward does not apply to these episodes", message)
            return np.full(len(episodes), np.nan)


class ExternalRewardModel:
    """Asks in requests of `batch_size` episodes, `max_workers` at a time, and again when that may help."""

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
        """The model that a config names, None where it names none."""
        return None if config.external_rm_url is None else cls(config, config.external_rm_url)

    def ask(self, batch: EpisodeBatch, first: int = 0) -> Answers:
        """Send the episodes of a batch, and return at once.

        :param first: the number of the batch's first episode, for messages.
        """
        size = self._config.batch_size
        chunks = [(start, batch.episodes[start : start + size]) for start in range(0, len(batch), size)]
        requests = [(first + start, chunk, self._pool.submit(self._rewards_of, chunk)) for start, chunk in chunks]
        return Answers(self, requests)

    def close(self) -> None:
        """Wait for requests that are on their way, within their timeouts, and close the connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def _rewards_of(self, episodes: list[Episode]) -> Column:
        config = self._config
        content = {"episodes": [_as_json(episode) for episode in episodes]}
        began = time.monotonic()
        try:
            answer = with_retries(
                lambda: self._client.ask("POST", content=content, seconds=config.external_rm_timeout),
                self._backoff,
                attempts=config.external_rm_retries + 1,
                patience=config.external_rm_timeout,
            )
        except RequestError as error:
            asked = error.retry_after or 0.0
            if asked <= config.external_rm_timeout:
                raise
            raise RewardError(
                f"{error}, to be asked again after {asked:.0f} s, which is longer than external_rm_timeout "
                f"({config.external_rm_timeout} s)"
            ) from error
        logger.debug(
            "the external reward model answered for %d episodes after %.3f s", len(episodes), time.monotonic() - began
        )
        return _read_rewards(answer, len(episodes))


def _as_json(episode: Episode) -> dict[str, str | None]:
    return {"prompt": episode.prompt, "response": episode.response, "reference": episode.reference}


def _read_rewards(answer: Any, count: int) -> Column:
    rewards = answer.get("rewards") if isinstance(answer, Mapping) else None
    if not isinstance(rewards, list):
        raise RewardError('the answer has no list of "rewards"')
    if any(isinstance(reward, (str, bool)) for reward in rewards):
        raise RewardError('the "rewards" of the answer must be numbers or null')
    return score_column("the answer", rewards, count)
