"""Scores rows of tokens with models that mlx-lm loads, in padded batches that fit into MLX's memory limit."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
from hookline.rewards.model_inputs import Row, check_head

__all__ = ["Perplexity", "RewardLogit"]

logger = logging.getLogger("hookline.rewards")

WIDTH_STEP: Final = 16
"""Widths are multiples of this. MLX compiles a function again for each shape."""
FULL: Final = 0.75
"""The least share of a batch that is no padding, besides the rounding of its width."""
LOGITS_AT_ONCE: Final = 2**24
"""The output layer is applied to as many tokens as make this many logits. With a vocabulary of 150,000 tokens, those
of a whole batch would take most of the memory."""


class PaddedBatches(ABC):
    """Scores rows in batches of similar length, shortest first: `batch_size` rows, or a power of two below it.

    MLX takes its memory limit as a guideline, and on a CPU it crashes where there is no more memory. So a batch is made
    smaller if it would exceed the limit, by the memory that the batch before it took. The first batch is one row.
    """

    config: Mapping[str, Any]

    def __init__(self, folder: Path, config: RewardConfig) -> None:
        if config.mlx_device == "gpu" and not mx.is_available(mx.gpu):
            raise RewardError("RewardConfig.mlx_device is 'gpu', but this MLX has none; use 'cpu'")
        self._device = {"gpu": mx.gpu, "cpu": mx.cpu, None: None}[config.mlx_device]
        self._limit = mx.get_memory_limit() if config.mlx_memory_limit is None else config.mlx_memory_limit
        powers = (1 << power for power in reversed(range(config.batch_size.bit_length())))
        self._counts = list(dict.fromkeys([config.batch_size, *powers]))
        self._row_bytes: float | None = None
        """The memory that one row of the latest batch took, besides the weights."""
        self._row_width = 1
        self.config = self._load(folder)

    @abstractmethod
    def _load(self, folder: Path) -> dict[str, Any]:
        """Load the model, and return its config."""

    @abstractmethod
    def _forward(self, tokens: mx.array, rows: Sequence[Row]) -> Column:
        """One score for each row.

        :param tokens: (rows, width), padded on the right with 0. There may be more rows, which are padding too. All
            models here are causal, so no score depends on padding.
        """

    def run(self, rows: Sequence[Row], widest: int) -> Column:
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].tokens))
        lengths = [len(rows[index].tokens) for index in order]
        scores = np.full(len(rows), np.nan)
        first, previous_limit = 0, mx.set_memory_limit(self._limit)
        try:
            with nullcontext() if self._device is None else mx.stream(self._device):
                while first < len(order):
                    count = self._choose_count(lengths[first : first + self._counts[0]])
                    batch = order[first : first + count]
                    width = min(_rounded(lengths[first + len(batch) - 1]), widest)
                    scores[batch] = self._run_batch([rows[index] for index in batch], count, width)
                    first += len(batch)
        finally:
            mx.set_memory_limit(previous_limit)
        return scores

    def state_dict(self) -> dict[str, Any]:
        """What the size of the next batch depends on."""
        return {"row_bytes": self._row_bytes, "row_width": self._row_width}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._row_bytes, self._row_width = state["row_bytes"], state["row_width"]

    def _choose_count(self, lengths: Sequence[int]) -> int:
        """The number of rows in a batch of the next rows, which have these lengths. The last ones may be padding."""
        for count in self._counts:
            own = lengths[:count]
            if sum(own) >= FULL * count * own[-1] and count <= self._rows_within_limit(_rounded(own[-1])):
                return count
        return 1

    def _run_batch(self, rows: Sequence[Row], count: int, width: int) -> Column:
        tokens = np.zeros((count, width), np.int32)
        for own, row in zip(tokens, rows, strict=False):
            own[: len(row.tokens)] = row.tokens
        active = mx.get_active_memory()
        mx.reset_peak_memory()
        scores = self._forward(mx.array(tokens), rows)
        peak = mx.get_peak_memory()
        self._row_bytes, self._row_width = max(1, peak - active) / count, width
        logger.debug("scored %d episodes of up to %d tokens, with %.1f MB", len(rows), width, (peak - active) / 1e6)
        if peak > self._limit and len(rows) == 1:
            logger.warning(
                "an episode of %d tokens took %.0f MB, above the memory limit of %.0f MB, and cannot be split",
                len(rows[0].tokens),
                peak / 1e6,
                self._limit / 1e6,
            )
        return scores

    def _rows_within_limit(self, width: int) -> float:
        if self._row_bytes is None:
            return 1
        # Memory has parts that are linear and quadratic in the width. This is above both.
        ratio = width / self._row_width
        needed = self._row_bytes * (ratio * ratio if ratio > 1 else ratio)
        return (self._limit - mx.get_active_memory()) / needed


def _rounded(length: int) -> int:
    return -(-length // WIDTH_STEP) * WIDTH_STEP


class Perplexity(PaddedBatches):
    """The mean log-probability of a response's tokens under a causal language model."""

    def _load(self, folder: Path) -> dict[str, Any]:
        model, config = load_mlx_model(folder)
        backbone, self._head, vocabulary = _split(model)
        self._backbone: Callable[[mx.array], mx.array] = mx.compile(lambda tokens: backbone(tokens))
        self._tokens_at_once = max(1, LOGITS_AT_ONCE // vocabulary)
        return config

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


class RewardLogit(PaddedBatches):
    """The logit of a sequence classifier with one label, in the layout of `...ForSequenceClassification`."""

    def _load(self, folder: Path) -> dict[str, Any]:
        model, config = load_mlx_model(folder, get_model_classes=_classifier)
        self._padding: int | None = config.get("pad_token_id")
        self._logits: Callable[[mx.array, mx.array], mx.array] = mx.compile(
            lambda tokens, last: model.score(model.model(tokens)[mx.arange(len(last)), last])
        )
        return config

    def _forward(self, tokens: mx.array, rows: Sequence[Row]) -> Column:
        last = np.zeros(len(tokens), np.int32)
        last[: len(rows)] = [row.last(self._padding) for row in rows]
        logits = self._logits(tokens, mx.array(last)).astype(mx.float32)
        return np.array(logits[: len(rows), 0], np.float64)


def _classifier(config: dict[str, Any]) -> tuple[type, type]:
    """The classes of mlx-lm for a model, whose output layer becomes a `score` with one label."""
    language_model, arguments = _get_classes(config)

    class Classifier(language_model):  # type: ignore[misc, valid-type]
        def __init__(self, args: Any) -> None:
            super().__init__(args)
            self.pop("lm_head", None)

        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            check_head(weights)
            self.score = Linear(weights["score.weight"].shape[1], 1, bias=False)
            sanitized: dict[str, mx.array] = super().sanitize(weights) if hasattr(super(), "sanitize") else weights
            return sanitized

    return Classifier, arguments
