"""Compute rewards from measured columns: one function, compiled by MLX or run by NumPy, with equal results.

Every reward is in 0..1, and 0 for an empty text. NaN means that a reward does not apply to an episode: it is left out
of the weighted mean, which `compute_reward_vector` computes. If none applies, the combined reward is NaN.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np

from hookline.importing import require
from hookline.rewards.features import Column

__all__ = [
    "RewardColumns",
    "Rewards",
    "Scorer",
    "combine_rewards",
    "compute_reward_vector",
    "rewards_of_logits",
    "scorer_for",
]

logger = logging.getLogger("hookline.rewards")

Rewards = Any
"""The public array type of rewards: a float32 `mx.array` with MLX, else a float64 NumPy array."""

LENGTH_TOLERANCE: Final = 0.2
"""A response within this share of its target length gets the full reward."""
NEW_KEYWORD_CREDIT: Final = 0.5
"""Extra credit for a keyword that the prompt does not contain."""
NO_SENTENCE_PENALTY: Final = 0.3
HEDGE_PENALTY: Final = 0.15
ACCURACY_FLOOR: Final = 0.3


@dataclass(frozen=True)
class RewardColumns:
    """The inputs of the rewards of a batch. Each column has one number per episode."""

    words: Column
    unique_words: Column
    long_words: Column
    sentence_ends: Column
    hedges: Column
    """Hedging phrases, such as "maybe" or "I think"."""
    target_length: Column
    keywords: Column
    """The number of keywords to find. Where it is 0, the keyword reward does not apply."""
    keywords_found: Column
    new_keywords_found: Column
    """Keywords found that the prompt does not contain."""
    log_fluency: Column
    """The log of the perplexity reward; NaN for an episode without log-probabilities."""
    guess_fluency: Column
    """1 where the words stand in for missing log-probabilities, 0 where the reward then does not apply."""
    agreement: Column
    """Agreement with the reference answer; NaN for an episode without one."""


def compute_reward_vector(
    response_lengths: Any, keyword_matches: Any, fluency_scores: Any, accuracy_scores: Any, weights: Any
) -> Any:
    """The weighted sum of the four rewards, as arrays of MLX or NumPy.

    :param weights: the weight of each reward, a number or one for each episode.
    """
    return (
        weights[0] * response_lengths
        + weights[1] * keyword_matches
        + weights[2] * fluency_scores
        + weights[3] * accuracy_scores
    )


def combine_rewards(xp: Any, columns: Sequence[Any], others: Sequence[Any], weights: Sequence[float]) -> Any:
    """The weighted mean of the rewards that apply to each episode.

    :param xp: the array library, `numpy` or `mlx.core`.
    :param columns: the fields of `RewardColumns`, in order.
    :param others: scores of custom and external rewards and of models.
    :param weights: for length, keyword, perplexity, accuracy, and then the others.
    """
    # In MLX, `where` with two Python numbers gives float32. These columns keep it float64.
    zero = columns[0] * 0.0
    one = zero + 1.0
    scores, shares, weight_applied = [], [], zero
    for score, weight in zip([*_built_in(xp, columns, zero, one), *others], weights, strict=True):
        not_applicable = xp.isnan(score)
        scores.append(xp.where(not_applicable, zero, score))
        shares.append(xp.where(not_applicable, zero, one * weight))
        weight_applied = weight_applied + shares[-1]
    some_weight = xp.where(weight_applied > 0, weight_applied, one)
    length, keyword, fluency, accuracy = scores[:4]
    total = compute_reward_vector(length, keyword, fluency, accuracy, shares[:4])
    for score, share in zip(scores[4:], shares[4:], strict=True):
        total = total + share * score
    return xp.where(weight_applied > 0, total / some_weight, math.nan)


def _built_in(xp: Any, columns: Sequence[Any], zero: Any, one: Any) -> list[Any]:
    """The rewards by length, keywords, perplexity and accuracy."""
    words, unique, long, ends, hedges, target, keywords, found, new, log_fluency, guess, agreement = columns
    some_words = xp.maximum(words, 1.0)

    off_target = xp.abs(words - target) / target
    length = xp.clip(1.0 - (off_target - LENGTH_TOLERANCE) / (1.0 - LENGTH_TOLERANCE), 0.0, 1.0)

    credit = (found + NEW_KEYWORD_CREDIT * new) / xp.maximum(keywords, 1.0)
    keyword = xp.where(keywords > 0, xp.minimum(credit, 1.0), math.nan)

    finished = xp.where(ends > 0, one, one * (1.0 - NO_SENTENCE_PENALTY))
    by_words = unique / some_words * (1.0 - long / some_words) * finished
    fluency = xp.where(xp.isnan(log_fluency) & (guess > 0), by_words, xp.exp(log_fluency))

    certainty = xp.maximum(1.0 - HEDGE_PENALTY * hedges, ACCURACY_FLOOR)
    accuracy = xp.where(xp.isnan(agreement), certainty, agreement)

    # Multiplying by 0 keeps NaN, so a reward that does not apply stays so for an empty text.
    has_text = xp.where(words > 0, one, zero)
    return [score * has_text for score in (length, keyword, fluency, accuracy)]


def rewards_of_logits(logits: Column, bounds: tuple[float, float] | None) -> Column:
    """The logits of a reward model as rewards in 0..1.

    :param bounds: `RewardConfig.reward_model_range`.
    """
    if bounds is None:
        return (1.0 + np.tanh(logits / 2.0)) / 2.0  # the sigmoid, without overflow
    low, high = bounds
    return np.clip((logits - low) / (high - low), 0.0, 1.0)


class Scorer(Protocol):
    """Computes rewards with one array library."""

    name: str

    def score(self, columns: RewardColumns, others: Sequence[Column], weights: Sequence[float]) -> Column:
        """`combine_rewards` in float64, because the result is compared with thresholds."""

    def as_rewards(self, column: Column) -> Rewards:
        """A column as an array of this library."""


def scorer_for(*, compiled: bool) -> Scorer:
    """The MLX scorer if `compiled` and MLX is installed, else the NumPy scorer."""
    if compiled and _mlx_is_installed():
        return MLXScorer()
    return NumPyScorer()


def _mlx_is_installed() -> bool:
    try:
        require("mlx.core", "computing rewards with MLX")
    except ImportError as error:
        logger.info("rewards are computed with NumPy: %s", error)
        return False
    return True


class NumPyScorer:
    """Used when MLX is turned off or not installed."""

    name = "NumPy"

    def score(self, columns: RewardColumns, others: Sequence[Column], weights: Sequence[float]) -> Column:
        combined: Column = combine_rewards(np, _as_list(columns), others, weights)
        return combined

    def as_rewards(self, column: Column) -> Rewards:
        return column


class MLXScorer:
    """Computes in float64, which MLX has on the CPU only. Returned rewards are float32, which the GPU has too."""

    name = "MLX"

    def __init__(self) -> None:
        self._mx = require("mlx.core", "computing rewards with MLX")

    def score(self, columns: RewardColumns, others: Sequence[Column], weights: Sequence[float]) -> Column:
        mx, count = self._mx, len(columns.words)
        # MLX recompiles for every shape. Padding to a power of two keeps the shapes few.
        width = 1 << max(0, count - 1).bit_length()
        with mx.stream(mx.cpu):
            inputs = [mx.array(_padded(column, width), dtype=mx.float64) for column in _as_list(columns)]
            more = [mx.array(_padded(column, width), dtype=mx.float64) for column in others]
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


def _padded(column: Column, width: int) -> Column:
    if len(column) == width:
        return column
    padded = np.ones(width)
    padded[: len(column)] = column
    return padded
