"""Models that score episodes, in MLX: the perplexity under a language model, and the logit of a reward model."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx.nn.layers.linear import Linear
from mlx_lm.utils import _get_classes

from hookline.mlx_models import load_mlx_model
from hookline.rewards.config import RewardConfig
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column
from hookline.rewards.model_inputs import Conversation, ConversationTokenizer, PaddedBatches, Row, conversation_of
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
LOGITS_AT_ONCE: Final = 2**24
"""The output layer is applied to as many tokens as make this many logits. With a vocabulary of 150,000 tokens, those
of a whole batch would take most of the memory."""


class ScoringModel(ABC):
    """Scores episodes with the model in a folder. Each distinct conversation is scored once.

    :param option: the field of `RewardConfig` that names the folder, for error messages.
    """

    def __init__(self, option: str, folder: Path | str, config: RewardConfig) -> None:
        self._option = option
        self._on_failure = config.on_failure
        self._batches = PaddedBatches(config)
        self._cache: dict[bytes, float] = {}
        path, folder = str(folder), Path(folder)
        if not (folder / "config.json").exists():
            what = "has no config.json, so it holds no model" if folder.is_dir() else "does not exist"
            raise RewardError(
                f"RewardConfig.{option}: the folder {path!r} {what}; `hf download NAME --local-dir FOLDER` makes one"
            )
        try:
            self._tokenizer = ConversationTokenizer(folder)
            settings = self._load(folder)
        except Exception as error:  # mlx-lm and transformers raise many kinds for a folder that they cannot use
            problem = str(error) if isinstance(error, RewardError) else describe_error(error)
            raise RewardError(f"RewardConfig.{option}: {path!r} cannot be loaded: {problem}") from error
        settings = {**settings.get("text_config", {}), **settings}
        self._context: int = settings.get("max_position_embeddings") or settings.get("n_positions") or UNLIMITED
        self._vocabulary: int = settings["vocab_size"]

    @abstractmethod
    def _load(self, folder: Path) -> dict[str, Any]:
        """Load the model, and return its config."""

    @abstractmethod
    def _encode(self, conversations: Sequence[Conversation]) -> list[Row | RewardError]: ...

    @abstractmethod
    def _forward(self, tokens: mx.array, rows: Sequence[Row]) -> Column: ...

    def scores(self, episodes: Sequence[Episode]) -> Column:
        """One score for each episode; NaN for an empty response, or where the model fails and failures do not raise."""
        places: dict[Conversation, list[int]] = {}
        for index, episode in enumerate(episodes):
            if episode.response.strip():
                places.setdefault(conversation_of(episode), []).append(index)
        column = np.full(len(episodes), np.nan)
        new: dict[Conversation, list[int]] = {}
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
            "keys": np.frombuffer(b"".join(self._cache), np.uint8).reshape(-1, KEY_BYTES),
            "scores": np.fromiter(self._cache.values(), np.float64, len(self._cache)),
            "batches": self._batches.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        keys = (np.asarray(key, np.uint8).tobytes() for key in state["keys"])
        self._cache = dict(zip(keys, np.asarray(state["scores"]).tolist(), strict=True))
        self._batches.load_state_dict(state["batches"])

    def _score(self, places: Mapping[Conversation, Sequence[int]]) -> dict[Conversation, float]:
        """The scores of conversations, without those that fail or have nothing to score.

        :param places: the numbers of the episodes, for error messages.
        """
        rows: dict[Conversation, Row] = {}
        for conversation, row in zip(places, self._encode(list(places)), strict=True):
            problem = self._problem(row)
            if problem is not None:
                self._fail(f", episode {places[conversation][0]}: {problem}")
            elif isinstance(row, Row) and len(row.tokens) > row.start:
                rows[conversation] = row
        try:
            values = self._batches.run(list(rows.values()), self._forward, self._context)
        except RuntimeError as error:  # what MLX raises
            self._fail(f" failed on {len(rows)} episodes: {describe_error(error)}", error)
            return {}
        scores: dict[Conversation, float] = {}
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

    def _load(self, folder: Path) -> dict[str, Any]:
        model, config = load_mlx_model(folder)
        backbone, self._head, vocabulary = _split(model)
        self._backbone: Callable[[mx.array], mx.array] = mx.compile(lambda tokens: backbone(tokens))
        self._tokens_at_once = max(1, LOGITS_AT_ONCE // vocabulary)
        return config

    def _encode(self, conversations: Sequence[Conversation]) -> list[Row | RewardError]:
        return self._tokenizer.after_messages(conversations)

    def _forward(self, tokens: mx.array, rows: Sequence[Row]) -> Column:
        # The backbone reads whole rows. The output layer is only for the tokens before those that are scored.
        hidden = self._backbone(tokens).flatten(0, 1)
        scored = [np.arange(row.start, len(row.tokens)) + number * tokens.shape[1] for number, row in enumerate(rows)]
        places = np.concatenate(scored)
        logprobs = np.empty(len(places))
        for first in range(0, len(places), self._tokens_at_once):
            part = slice(first, first + self._tokens_at_once)
            logits = self._head(hidden[mx.array(places[part] - 1)]).astype(mx.float32)
            targets = tokens.flatten()[mx.array(places[part])]
            chosen = mx.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
            logprobs[part] = np.array(chosen - mx.logsumexp(logits, axis=-1))
        counts = np.array(list(map(len, scored)))
        means: Column = np.add.reduceat(logprobs, np.cumsum(counts) - counts) / counts
        return means


def _split(model: Any) -> tuple[Any, Any, int]:
    """A model as its backbone and its output layer, and the size of its vocabulary.

    A model that does more with its logits, or is not built of these parts, is all backbone.
    """
    probe = mx.arange(4)[None]
    logits = model(probe)
    backbone: Any = getattr(model, "model", None)
    embedding = getattr(backbone, "embed_tokens", None)
    head = getattr(model, "lm_head", getattr(embedding, "as_linear", None))
    if head is not None and mx.array_equal(head(backbone(probe)), logits):
        return backbone, head, logits.shape[-1]
    return model, lambda hidden: hidden, logits.shape[-1]


class RewardModel(ScoringModel):
    """The logit of a sequence classifier with one label, in the layout of `...ForSequenceClassification`."""

    def _load(self, folder: Path) -> dict[str, Any]:
        model, config = load_mlx_model(folder, get_model_classes=_classifier)
        self._padding: int | None = config.get("pad_token_id")
        self._logits: Callable[[mx.array, mx.array], mx.array] = mx.compile(
            lambda tokens, last: model.score(model.model(tokens)[mx.arange(len(last)), last])
        )
        return config

    def _encode(self, conversations: Sequence[Conversation]) -> list[Row | RewardError]:
        return self._tokenizer.whole(conversations)

    def _forward(self, tokens: mx.array, rows: Sequence[Row]) -> Column:
        last = np.zeros(len(tokens), np.int32)
        last[: len(rows)] = [self._last(row.tokens) for row in rows]
        logits = self._logits(tokens, mx.array(last)).astype(mx.float32)
        return np.array(logits[: len(rows), 0], np.float64)

    def _last(self, tokens: Sequence[int]) -> int:
        """The token whose hidden state is read: the last that is not padding, as in transformers.

        Where a model pads with its end token, that is the token before the end.
        """
        return next((place for place in reversed(range(len(tokens))) if tokens[place] != self._padding), 0)


def _classifier(config: dict[str, Any]) -> tuple[type, type]:
    """The classes of mlx-lm for a model, whose output layer becomes a `score` with one label."""
    language_model, arguments = _get_classes(config)

    class Classifier(language_model):  # type: ignore[misc, valid-type]
        def __init__(self, args: Any) -> None:
            super().__init__(args)
            self.pop("lm_head", None)

        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            score = weights.get("score.weight")
            if score is None:
                raise RewardError("it has no score.weight, as a sequence classifier of transformers has")
            if len(score) != 1:
                raise RewardError(f"it has {len(score)} labels, and a reward model has one")
            self.score = Linear(score.shape[1], 1, bias=False)
            sanitized: dict[str, mx.array] = super().sanitize(weights) if hasattr(super(), "sanitize") else weights
            return sanitized

    return Classifier, arguments


def _key(conversation: Conversation) -> bytes:
    return blake2b(repr(conversation).encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
