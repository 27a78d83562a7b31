"""Rewards of others: plugins that implement `score_episodes`, and functions of a prompt and a response."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hookline.plugins.errors import did_you_mean
from hookline.plugins.manager import PluginManager
from hookline.rewards.config import OnFailure
from hookline.rewards.errors import RewardError, shown
from hookline.rewards.failures import collect_or_raise
from hookline.rewards.features import Column
from hookline_hookspecs import EpisodeBatch
from hookline_hookspecs.errors import describe_error

__all__ = ["RewardFunction", "check_weights", "function_scores", "plugin_scores", "score_column"]

RewardFunction = Callable[[str, str], float | None]
"""From a prompt and a response to a score in 0..1, or None where it does not apply."""


def plugin_scores(manager: PluginManager, batch: EpisodeBatch, on_failure: OnFailure) -> dict[str, Column]:
    """What plugins give in `score_episodes`, by the reward's name."""
    columns: dict[str, Column] = {}
    for plugin, result in collect_or_raise(manager, "score_episodes", batch, on_failure):
        if not isinstance(result, Mapping):
            raise RewardError(
                f"plugin {plugin!r}: score_episodes must return scores by the reward's name, "
                f"got {type(result).__name__}"
            )
        for name, scores in result.items():
            if name in columns:
                raise RewardError(f"plugin {plugin!r}: another reward is called {name!r} too; give one another name")
            columns[name] = score_column(f"reward {name!r} of plugin {plugin!r}", scores, len(batch))
    return columns


def function_scores(
    functions: Sequence[RewardFunction], batch: EpisodeBatch, on_failure: OnFailure
) -> dict[str, Column]:
    """What functions give, by the function's name."""
    columns: dict[str, Column] = {}
    for function in functions:
        name = getattr(function, "__name__", type(function).__name__)
        if name in columns:
            raise RewardError(f"two custom rewards are called {name!r}; give one another name")
        scores: list[float | None] = []
        for index, episode in enumerate(batch):
            try:
                scores.append(function(episode.prompt, episode.response))
            except Exception as error:
                if on_failure == "raise":
                    raise RewardError(f"reward {name!r} failed on episode {index}: {describe_error(error)}") from error
                scores.append(None)
        columns[name] = score_column(f"reward {name!r}", scores, len(batch))
    return columns


def score_column(who: str, scores: Any, count: int) -> Column:
    """The scores of one reward as a column, with NaN for None; anything else that is no score is an error."""
    try:
        values = list(scores)
    except TypeError:
        raise RewardError(f"{who} must give one score for each episode, got {type(scores).__name__}") from None
    if len(values) != count:
        raise RewardError(f"{who} gave {len(values)} scores for {count} episodes")
    for index, value in enumerate(values):
        problem = _score_problem(value)
        if problem:
            raise RewardError(f"{who}, episode {index}: {problem}; None says that a reward does not apply")
    return np.array([math.nan if value is None else float(value) for value in values])


def _score_problem(value: Any) -> str | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return f"the score must be a number in 0..1, got {shown(value)}"
    if math.isnan(number):
        return "the score is NaN"
    return None if 0.0 <= number <= 1.0 else f"the score must be in 0..1, got {number!r}"


def check_weights(weights: Mapping[str, float], rewards: Mapping[str, Column]) -> None:
    """Raise for a weight of a reward that does not exist."""
    for name in weights:
        if name not in rewards:
            known = did_you_mean(name, rewards)
            raise RewardError(
                f"RewardConfig.custom_weights has a weight for {name!r}, but there is no such reward{known}"
            )
