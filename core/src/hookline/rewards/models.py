"""Models that score episodes: the perplexity under a language model, and the logit of a reward model.

MLX runs them on a GPU, by `models_mlx.py`. On a CPU NumPy is faster, by `models_numpy.py`, for the models that it has.
"""

from __future__ import annotations

import importlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np

from hookline.importing import MissingExtraError, require
from hookline.rewards.config import RewardConfig
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column
from hookline.rewards.model_inputs import ConversationTokenizer, ModelInput, ModelScorer, Row, conversation_of
from hookline_hookspecs import Episode
from hookline_hookspecs.errors import describe_error

__all__ = ["PerplexityModel", "RewardModel", "ScoringModel"]

logger = logging.getLogger("hookline.rewards")

CACHED: Final = 65_536
"""Scores that are kept, by a hash of the conversation."""
KEY_BYTES: Final = 16
"""The size of such a hash."""
UNLIMITED: Final = 2**31 - 1
"""The context of a model without a longest sequence."""


class ScoringModel(ABC):
    """Scores episodes with the model in a folder. Each distinct conversation is scored once.

    :param option: the field of `RewardConfig` that names the folder, for error messages.
    """

    def __init__(self, option: str, folder: Path | str, config: RewardConfig) -> None:
        self._option = option
        self._on_failure = config.on_failure
        self._cache: dict[bytes, float] = {}
        path, folder = str(folder), Path(folder)
        if not (folder / "config.json").exists():
            what = "has no config.json, so it holds no model" if folder.is_dir() else "does not exist"
            raise RewardError(
                f"RewardConfig.{option}: the folder {path!r} {what}; `hf download NAME --local-dir FOLDER` makes one"
            )
        try:
            self._tokenizer = ConversationTokenizer(folder)
            self._scorer = self._load(folder, config)
        except MissingExtraError:
            raise
        except Exception as error:  # mlx-lm and transformers raise many kinds for a folder that they cannot use
            problem = str(error) if isinstance(error, RewardError) else describe_error(error)
            raise RewardError(f"RewardConfig.{option}: {path!r} cannot be loaded: {problem}") from error
        library = type(self._scorer).__module__.rpartition("_")[2]
        self._source: Final = {"folder": str(folder.resolve()), "library": library}
        """Where scores come from. Those of another model mean something else, and so does the state of its scorer."""
        settings = {**self._scorer.config.get("text_config", {}), **self._scorer.config}
        self._context: int = settings.get("max_position_embeddings") or settings.get("n_positions") or UNLIMITED
        self._vocabulary: int = settings["vocab_size"]

    @abstractmethod
    def _load(self, folder: Path, config: RewardConfig) -> ModelScorer:
        """Load the model into the library that runs it."""

    @abstractmethod
    def _encode(self, conversations: Sequence[ModelInput]) -> list[Row | RewardError]: ...

    def _library(self, folder: Path, config: RewardConfig) -> Any:
        """The module with the scorers: that of NumPy where MLX has no GPU, if it supports the model; else that of MLX.

        `mlx_device` asks for MLX.
        """
        from hookline.rewards import models_numpy

        if config.mlx_device is None and not _mlx_has_gpu() and models_numpy.supports(folder):
            return models_numpy
        for package in ("mlx.core", "mlx_lm"):
            require(package, f"RewardConfig.{self._option}", "mlx-lm")
        return importlib.import_module("hookline.rewards.models_mlx")

    def scores(self, episodes: Sequence[Episode]) -> Column:
        """One score for each episode; NaN for an empty response, or where the model fails and failures do not raise."""
        places: dict[ModelInput, list[int]] = {}
        for index, episode in enumerate(episodes):
            if episode.response.strip():
                places.setdefault(conversation_of(episode), []).append(index)
        column = np.full(len(episodes), np.nan)
        new: dict[ModelInput, list[int]] = {}
        for conversation, own in places.items():
            score = self._cache.get(_key(conversation))
            if score is None:
                new[conversation] = own
            else:
                column[own] = score
        for conversation, score in self._score(new).items():
            column[new[conversation]] = score
        return column

    def state_dict(self) -> dict[str, Any]:
        """The scores that are kept. In other batches, the last digits of others would differ after a resume."""
        return {
            "source": self._source,
            "keys": np.frombuffer(b"".join(self._cache), np.uint8).reshape(-1, KEY_BYTES),
            "scores": np.fromiter(self._cache.values(), np.float64, len(self._cache)),
            "scorer": self._scorer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. One of a model in another folder or library is ignored."""
        source = state.get("source")
        if source != self._source:
            logger.info("RewardConfig.%s: no scores are taken over, since they are of %s", self._option, source)
            return
        keys = (np.asarray(key, np.uint8).tobytes() for key in state["keys"])
        self._cache = dict(zip(keys, np.asarray(state["scores"]).tolist(), strict=True))
        self._scorer.load_state_dict(state["scorer"])

    def _score(self, places: Mapping[ModelInput, Sequence[int]]) -> dict[ModelInput, float]:
        """The scores of conversations, without those that fail or have nothing to score.

        :param places: the numbers of the episodes, for error messages.
        """
        rows: dict[ModelInput, Row] = {}
        for conversation, row in zip(places, self._encode(list(places)), strict=True):
            problem = self._problem(row)
            if problem is not None:
                self._fail(f", episode {places[conversation][0]}: {problem}")
            elif isinstance(row, Row) and len(row.tokens) > row.start:
                rows[conversation] = row
        try:
            values = self._scorer.run(list(rows.values()), self._context)
        except (RuntimeError, MemoryError) as error:  # MLX raises the first, NumPy the second
            self._fail(f" failed on {len(rows)} episodes: {describe_error(error)}", error)
            return {}
        scores: dict[ModelInput, float] = {}
        for conversation, score in zip(rows, values.tolist(), strict=True):
            if math.isnan(score):
                self._fail(f", episode {places[conversation][0]}: the model's output is not a number")
            else:
                scores[conversation] = self._cache[_key(conversation)] = score
        while len(self._cache) > CACHED:
            del self._cache[next(iter(self._cache))]
        return scores

    def _problem(self, row: Row | RewardError) -> str | None:
        if isinstance(row, RewardError):
            return str(row)
        if len(row.tokens) > self._context:
            return f"it has {len(row.tokens)} tokens, and the model's context is {self._context}"
        if max(row.tokens, default=0) >= self._vocabulary:
            return f"token {max(row.tokens)} of its tokenizer is not in the model's vocabulary of {self._vocabulary}"
        return None

    def _fail(self, problem: str, cause: Exception | None = None) -> None:
        message = f"RewardConfig.{self._option}{problem}"
        if self._on_failure == "raise":
            raise RewardError(message) from cause
        logger.warning("%s; no reward from it", message)


class PerplexityModel(ScoringModel):
    """The mean log-probability of a response's tokens under a causal language model."""

    def _load(self, folder: Path, config: RewardConfig) -> ModelScorer:
        scorer: ModelScorer = self._library(folder, config).Perplexity(folder, config)
        return scorer

    def _encode(self, conversations: Sequence[ModelInput]) -> list[Row | RewardError]:
        return self._tokenizer.after_messages(conversations)


class RewardModel(ScoringModel):
    """The logit of a sequence classifier with one label, in the layout of `...ForSequenceClassification`."""

    def _load(self, folder: Path, config: RewardConfig) -> ModelScorer:
        scorer: ModelScorer = self._library(folder, config).RewardLogit(folder, config)
        return scorer

    def _encode(self, conversations: Sequence[ModelInput]) -> list[Row | RewardError]:
        return self._tokenizer.whole(conversations)


def _mlx_has_gpu() -> bool:
    try:
        import mlx.core as mx
    except ImportError:
        return False
    return bool(mx.is_available(mx.gpu))


def _key(conversation: ModelInput) -> bytes:
    return blake2b(repr(conversation).encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
