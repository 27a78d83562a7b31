"""From columns of measurements to rewards: one function, compiled by MLX or run by NumPy, with the same results.

Every reward is in 0..1, and 0 for an empty text. NaN means that a reward does not apply to an episode: it is left out
of the episode's weighting, and where nothing applies the combined reward is NaN too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np

from hookline.extras import require
from hookline.rewards.features import Column

__all__ = ["RewardColumns", "Rewards", "Scorer", "combine_rewards", "scorer_for"]

logger = logging.getLogger("hookline.rewards")

LENGTH_TOLERANCE: Final = 0.2
"""A response this near to its target length, as a share of the target, has the full reward."""
NEW_KEYWORD_CREDIT: Final = 0.5
"""What a keyword counts besides, when the prompt did not have it."""
NO_SENTENCE_PENALTY: Final = 0.3
HEDGE_PENALTY: Final = 0.15
ACCURACY_FLOOR: Final = 0.3


@dataclass(frozen=True)
class RewardColumns:
    """What the rewards of a batch are computed from, a number for each episode in each column."""

    words: Column
    unique_words: Column
    long_words: Column
    sentence_ends: Column
    hedges: Column
    target_length: Column
    keywords: Column
    """How many there are to find; none makes the keyword reward not applicable."""
    keywords_found: Column
    new_keywords_found: Column
    """Those found that the prompt does not contain."""
    mean_logprob: Column
    """NaN where the rollout has no log-probabilities."""
    agreement: Column
    """With the reference answer; NaN where there is none."""


def combine_rewards(xp: Any, columns: Sequence[Any], others: Sequence[Any], weights: Sequence[float]) -> Any:
    """The weighted mean of the rewards that apply to each episode.

    :param xp: the array library, `numpy` or `mlx.core`.
    :param columns: those of `RewardColumns`, in its order.
    :param others: scores of custom and external rewards.
    :param weights: of length, keyword, perplexity and accuracy, then of the others.
    """
    words, unique, long, ends, hedges, target, keywords, found, new, logprob, agreement = columns
    # A choice between two plain numbers would be float32 under MLX: choose between columns.
    zero = words * 0.0
    one = zero + 1.0
    some_words = xp.maximum(words, 1.0)

    off_target = xp.abs(words - target) / target
    length = xp.clip(1.0 - (off_target - LENGTH_TOLERANCE) / (1.0 - LENGTH_TOLERANCE), 0.0, 1.0)

    credit = (found + NEW_KEYWORD_CREDIT * new) / xp.maximum(keywords, 1.0)
    keyword = xp.where(keywords > 0, xp.minimum(credit, 1.0), math.nan)

    finished = xp.where(ends > 0, one, one * (1.0 - NO_SENTENCE_PENALTY))
    fluency = unique / some_words * (1.0 - long / some_words) * finished
    perplexity = xp.where(xp.isnan(logprob), fluency, xp.exp(xp.minimum(logprob, 0.0)))

    certainty = xp.maximum(1.0 - HEDGE_PENALTY * hedges, ACCURACY_FLOOR)
    accuracy = xp.where(xp.isnan(agreement), certainty, agreement)

    total, weight_applied = zero, zero
    # Times 0 or 1, rather than a choice of 0: NaN stays NaN, so that what does not apply is not a 0 for an empty text.
    has_text = xp.where(words > 0, one, zero)
    built_in = [score * has_text for score in (length, keyword, perplexity, accuracy)]
    for score, weight in zip([*built_in, *others], weights, strict=True):
        not_applicable = xp.isnan(score)
        total = total + xp.where(not_applicable, zero, score * weight)
        weight_applied = weight_applied + xp.where(not_applicable, zero, one * weight)
    some_weight = xp.where(weight_applied > 0, weight_applied, one)
    return xp.where(weight_applied > 0, total / some_weight, math.nan)


Rewards = Any
"""What the public functions return: an `mx.array` of float32 where MLX computes, else a NumPy array of float64."""


class Scorer(Protocol):
    """What computes the rewards."""

    name: str

    def score(self, columns: RewardColumns, others: Sequence[Column], weights: Sequence[float]) -> Column:
        """`combine_rewards`, in float64, since bounds are compared with what comes out."""

    def as_rewards(self, column: Column) -> Rewards:
        """A column as an array of this library."""


def scorer_for(*, compiled: bool) -> Scorer:
    """`combine_rewards` by MLX, if it is wanted and installed, else by NumPy."""
    if compiled and _mlx_is_installed():
        return MLXScorer()
    return NumPyScorer()


def _mlx_is_installed() -> bool:
    try:
        require("mlx.core", "computing rewards with MLX")
    except ImportError as error:
        logger.info("rewards are computed by NumPy: %s", error)
        return False
    return True


class NumPyScorer:
    """Runs where MLX is not wanted or not installed."""

    name = "NumPy"

    def score(self, columns: RewardColumns, others: Sequence[Column], weights: Sequence[float]) -> Column:
        combined: Column = combine_rewards(np, _as_list(columns), others, weights)
        return combined

    def as_rewards(self, column: Column) -> Rewards:
        return column


class MLXScorer:
    """Computes on the CPU, since GPUs under MLX have no float64. What it returns is float32, which they have."""

    name = "MLX"

    def __init__(self) -> None:
        self._mx = require("mlx.core", "computing rewards with MLX")

    def score(self, columns: RewardColumns, others: Sequence[Column], weights: Sequence[float]) -> Column:
        mx, count = self._mx, len(columns.words)
        # MLX traces anew for every shape: widths that are powers of two keep those few.
        width = 1 << max(0, count - 1).bit_length()
        with mx.stream(mx.cpu):
            inputs = [mx.array(_widened(column, width), dtype=mx.float64) for column in _as_list(columns)]
            more = [mx.array(_widened(column, width), dtype=mx.float64) for column in others]
            combined: Column = np.array(_compiled(tuple(weights))(inputs, more))
        return combined[:count]

    def as_rewards(self, column: Column) -> Rewards:
        return self._mx.array(column.astype(np.float32))


@lru_cache(maxsize=32)
def _compiled(weights: tuple[float, ...]) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    mx = require("mlx.core", "computing rewards with MLX")

    def combine(columns: Sequence[Any], others: Sequence[Any]) -> Any:
        return combine_rewards(mx, columns, others, weights)

    return mx.compile(combine)  # type: ignore[no-any-return]


def _as_list(columns: RewardColumns) -> list[Column]:
    return [getattr(columns, own.name) for own in fields(columns)]


def _widened(column: Column, width: int) -> Column:
    if len(column) == width:
        return column
    wide = np.ones(width)
    wide[: len(column)] = column
    return wide
