"""An external reward model, asked over HTTP.

Each request is a POST of `{"episodes": [{"prompt": ..., "response": ..., "reference": ...}, ...]}`, and its answer is
`{"rewards": [0.7, null, ...]}`: one number in 0..1 for each episode in the same order, or null where the model has
none. A token in the environment variable HOOKLINE_REWARD_MODEL_TOKEN is sent as a bearer token.
"""

from __future__ import annotations

import email.utils
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from hookline.extras import require
from hookline.rewards.config import OnFailure, RewardConfig
from hookline.rewards.custom import score_column
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column
from hookline_hookspecs import Episode, EpisodeBatch

__all__ = ["Answers", "ExternalRewardModel"]

logger = logging.getLogger("hookline.rewards")

TOKEN_VARIABLE: Final = "HOOKLINE_REWARD_MODEL_TOKEN"
LONGEST_BACKOFF: Final = 30.0
LONGEST_ANSWER: Final = 64 * 1024 * 1024


class RetryableError(RewardError):
    """What may go well the next time: a connection that broke, a 429, a 5xx."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds for which the server asked to be left alone."""


@dataclass(frozen=True)
class Answers:
    """What the model says of a batch, once it has said it."""

    model: ExternalRewardModel
    requests: Sequence[tuple[int, list[Episode], Future[Column]]]
    """The first episode's number, the episodes and the answer to come, of each request."""

    def column(self) -> Column:
        """Wait for all answers and put them in the order of the episodes."""
        try:
            columns = [self._column_of(*request) for request in self.requests]
        except RewardError:
            for _, _, future in self.requests:
                future.cancel()
            raise
        return np.concatenate(columns) if columns else np.zeros(0)

    def _column_of(self, first: int, episodes: list[Episode], future: Future[Column]) -> Column:
        try:
            return future.result()
        except RewardError as error:
            last = first + len(episodes) - 1
            message = f"external reward model at {self.model.shown_url}, episodes {first} to {last}: {error}"
            if self.model.on_failure == "raise":
                raise RewardError(message) from error
            logger.warning("%s; its reward does not apply to these episodes", message)
            return np.full(len(episodes), np.nan)


class ExternalRewardModel:
    """Asks in requests of `batch_size` episodes, several at a time, and again when that may help."""

    def __init__(self, config: RewardConfig, url: str) -> None:
        self._httpx = require("httpx", "an external reward model")
        self._tenacity = require("tenacity", "an external reward model")
        self._config = config
        self._url = url
        parts = urlsplit(url)
        self.shown_url: Final = f"{parts.scheme}://{parts.netloc}{parts.path}"
        """The address without its query, which may have a key in it."""
        self.on_failure: Final[OnFailure] = config.on_failure
        self._client: Any = self._httpx.Client(timeout=config.external_rm_timeout, headers=_headers())
        self._pool = ThreadPoolExecutor(config.max_workers, thread_name_prefix="hookline-reward-model")

    @classmethod
    def of(cls, config: RewardConfig) -> ExternalRewardModel | None:
        """The model that a config names, None where it names none."""
        return None if config.external_rm_url is None else cls(config, config.external_rm_url)

    def ask(self, batch: EpisodeBatch) -> Answers:
        """Send the episodes of a batch, and return at once."""
        size = self._config.batch_size
        chunks = [(first, batch.episodes[first : first + size]) for first in range(0, len(batch), size)]
        return Answers(self, [(first, chunk, self._pool.submit(self._request, chunk)) for first, chunk in chunks])

    def close(self) -> None:
        """Wait for requests that are on their way, within their timeouts, and close the connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def _request(self, episodes: list[Episode]) -> Column:
        config, tenacity = self._config, self._tenacity
        first = config.external_rm_backoff
        backoff = tenacity.wait_exponential(multiplier=first, max=LONGEST_BACKOFF) + tenacity.wait_random(0, first)

        def wait(state: Any) -> float:
            error = state.outcome.exception()
            return max(float(backoff(state)), error.retry_after or 0.0)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(RetryableError),
            stop=tenacity.stop_after_attempt(config.external_rm_retries + 1),
            wait=wait,
            reraise=True,
        )
        body = json.dumps({"episodes": [_as_json(episode) for episode in episodes]}).encode()
        answer: bytes = retrying(self._post, body)
        return _read_rewards(answer, len(episodes))

    def _post(self, body: bytes) -> bytes:
        """Send one request and read its answer, all within the timeout."""
        deadline = time.monotonic() + self._config.external_rm_timeout
        try:
            with self._client.stream("POST", self._url, content=body) as response:
                self._check_status(response)
                answer = bytearray()
                for part in response.iter_bytes():
                    answer += part
                    if len(answer) > LONGEST_ANSWER:
                        raise RewardError(f"the answer is longer than {LONGEST_ANSWER} bytes")
                    if time.monotonic() > deadline:
                        raise RetryableError(f"no whole answer within {self._config.external_rm_timeout} s")
                return bytes(answer)
        except self._httpx.TimeoutException as error:
            raise RetryableError(f"no answer within {self._config.external_rm_timeout} s") from error
        except self._httpx.TransportError as error:
            raise RetryableError(f"{type(error).__name__}: {error}") from error
        except self._httpx.DecodingError as error:
            raise RewardError(f"the answer cannot be decoded: {error}") from error

    def _check_status(self, response: Any) -> None:
        status = response.status_code
        if status == 429 or status >= 500:
            asked = _retry_after(response.headers.get("retry-after"))
            if asked is not None and asked > self._config.external_rm_timeout:
                raise RewardError(
                    f"status {status}, to be asked again after {asked:.0f} s, which is longer than "
                    f"external_rm_timeout ({self._config.external_rm_timeout} s)"
                )
            raise RetryableError(f"status {status}", asked)
        if status != 200:
            hint = f"; is {TOKEN_VARIABLE} set to a valid token?" if status in (401, 403) else ""
            raise RewardError(f"status {status}{hint}")


def _headers() -> dict[str, str]:
    headers = {"content-type": "application/json", "accept": "application/json"}
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    return headers | {"authorization": f"Bearer {token}"} if token else headers


def _as_json(episode: Episode) -> dict[str, str | None]:
    return {"prompt": episode.prompt, "response": episode.response, "reference": episode.reference}


def _retry_after(value: str | None) -> float | None:
    """Seconds from now, whichever of its two forms the header has; None for anything else."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def _read_rewards(answer: bytes, count: int) -> Column:
    try:
        content = json.loads(answer)
    except ValueError as error:
        raise RewardError(f"the answer is not JSON: {error}") from error
    rewards = content.get("rewards") if isinstance(content, Mapping) else None
    if not isinstance(rewards, list):
        raise RewardError('the answer has no list of "rewards"')
    if any(isinstance(reward, (str, bool)) for reward in rewards):
        raise RewardError('the "rewards" of the answer must be numbers or null')
    return score_column("the answer", rewards, count)
