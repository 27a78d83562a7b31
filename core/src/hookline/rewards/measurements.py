"""Measure a batch: the columns from which length, keyword, perplexity and accuracy rewards are computed."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from hookline.rewards.config import POLICY, RewardConfig, keywords_problem
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column, FeatureTable, Flags
from hookline.rewards.phrases import PhraseList
from hookline.rewards.scoring import RewardColumns
from hookline.rewards.words import canonical
from hookline_hookspecs import Episode, EpisodeBatch
from hookline_hookspecs.errors import shortened

__all__ = ["agreement", "measure", "recorded_logprobs"]

NUMBER: Final = re.compile(r"[-+−]?(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?")  # noqa: RUF001
PUNCTUATION: Final = ".,;:!?\"'()[]{}…。！？«»“”‘’"  # noqa: RUF001


def agreement(response: str, reference: str) -> float:
    """1 for the same text or the same number; otherwise the F1 score of their words.

    If the reference is a number, the last number of the response counts as its answer: 1 if equal, else 0.
    """
    given, expected = canonical(response), canonical(reference)
    if given.strip(PUNCTUATION) == expected.strip(PUNCTUATION):
        return 1.0
    number = _whole_number(expected)
    if number is not None:
        numbers = NUMBER.findall(given)
        return float(bool(numbers) and math.isclose(_value(numbers[-1]), number, rel_tol=1e-9))
    given_words, expected_words = _word_set(given), _word_set(expected)
    total = len(given_words) + len(expected_words)
    return 2 * len(given_words & expected_words) / total if total else 0.0


def measure(
    batch: EpisodeBatch, features: FeatureTable, config: RewardConfig, hedges: PhraseList, mean_logprobs: Column
) -> RewardColumns:
    """The columns of a batch, from its texts and its episodes' targets, keywords and answers.

    :param mean_logprobs: of the tokens of each response; NaN where they are not known.
    """
    own = {index: episode for index, episode in enumerate(batch.episodes) if episode.metadata}
    keywords, found, new = _keyword_columns(features, config, own)
    return RewardColumns(
        words=features.words,
        unique_words=features.unique_words,
        long_words=features.long_words,
        sentence_ends=features.sentence_ends,
        hedges=features.count(hedges),
        target_length=_target_lengths(len(batch), config, own),
        keywords=keywords,
        keywords_found=found,
        new_keywords_found=new,
        log_fluency=np.minimum(mean_logprobs + math.log(config.target_perplexity), 0.0),
        guess_fluency=np.full(len(batch), float(config.perplexity_model is None)),
        agreement=_agreements(batch.episodes),
    )


def _target_lengths(count: int, config: RewardConfig, own: dict[int, Episode]) -> Column:
    targets = np.full(count, float(config.target_length))
    for index, episode in own.items():
        target = episode.metadata.get("target_length")
        if target is None:
            continue
        if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target <= sys.float_info.max:
            raise RewardError(
                f"episode {index}: metadata['target_length'] must be a number above 0, got {shortened(target)}"
            )
        targets[index] = target
    return targets


def _keyword_columns(
    features: FeatureTable, config: RewardConfig, own: dict[int, Episode]
) -> tuple[Column, Column, Column]:
    """Per episode: the number of keywords, how many were found, and how many of those are not in its prompt."""
    of_all = tuple(config.keywords or ())
    special = {index: _own_keywords(index, episode) for index, episode in own.items() if "keywords" in episode.metadata}
    every = tuple(dict.fromkeys([*of_all, *(keyword for keywords in special.values() for keyword in keywords)]))
    count = len(features)
    if not every:
        return np.zeros(count), np.zeros(count), np.zeros(count)
    phrases = PhraseList("keywords", every)
    features.request(phrases)
    in_responses = features.in_responses(phrases)
    ids = in_responses.automaton.ids
    wanted_by_all = ids(of_all)
    wanted_by = {index: ids(keywords) for index, keywords in special.items()}
    total = np.full(count, float(len(wanted_by_all)))
    total[list(wanted_by)] = [len(wanted) for wanted in wanted_by.values()]
    texts, patterns = in_responses.distinct(phrases)
    if special:
        pairs = zip(texts.tolist(), patterns.tolist(), strict=True)
        wanted = np.array([pattern in wanted_by.get(text, wanted_by_all) for text, pattern in pairs], bool)
        texts, patterns = texts[wanted], patterns[wanted]
    in_prompts, prompts = features.in_prompts(phrases)
    new = ~in_prompts.contains(prompts[texts], patterns)
    found, new_found = (np.bincount(hits, minlength=count).astype(np.float64) for hits in (texts, texts[new]))
    return total, found, new_found


def _own_keywords(index: int, episode: Episode) -> Sequence[str]:
    keywords: Sequence[str] = episode.metadata["keywords"]
    problem = keywords_problem(keywords)
    if problem:
        raise RewardError(f"episode {index}: metadata['keywords'] {problem}")
    return keywords


def recorded_logprobs(episodes: Sequence[Episode], config: RewardConfig) -> Column:
    """The mean log-probability of each response under the policy that sampled it; NaN where none is recorded.

    It is that of the policy at the temperature of the sampling, without what top-k and top-p cut off.
    """
    column = np.full(len(episodes), math.nan)
    for index in [index for index, episode in enumerate(episodes) if episode.logprobs is not None]:
        column[index] = _mean_logprob(index, episodes[index])
    if config.perplexity_model == POLICY:
        for index, episode in enumerate(episodes):
            if not episode.response.strip():
                column[index] = math.nan
            elif math.isnan(column[index]) and config.on_failure == "raise":
                raise RewardError(
                    f"episode {index} has no log-probabilities, and RewardConfig.perplexity_model is {POLICY!r}: score "
                    "episodes of a rollout, or name a model's folder"
                )
    return column


def _mean_logprob(index: int, episode: Episode) -> float:
    """Over the tokens of the response, which the policy sampled; those of a prompt say nothing of it."""
    try:
        values = np.asarray(episode.logprobs, np.float64)
        if episode.log_mass is not None:
            values = values + np.asarray(episode.log_mass, np.float64)
        if episode.mask is not None:
            values = values[_response_tokens(episode)]
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise RewardError(f"episode {index}: its log-probabilities cannot be read as numbers: {error}") from error
    if not values.size:
        return math.nan
    mean = float(values.mean())
    if math.isnan(mean) or values.max() > 1e-3:
        raise RewardError(f"episode {index}: log-probabilities must be numbers of at most 0, got {values!r}")
    return mean


def _response_tokens(episode: Episode) -> Flags:
    """Which tokens are of the response: what the policy sampled in its last turn."""
    sampled: Flags = np.array(episode.mask, bool)
    starts = [turn.start for turn in episode.turns if turn.role == "assistant" and turn.end > turn.start]
    if starts:
        sampled[: starts[-1]] = False
    return sampled


def _agreements(episodes: Sequence[Episode]) -> Column:
    column = np.full(len(episodes), math.nan)
    for index in [i for i, episode in enumerate(episodes) if episode.reference is not None or episode.metadata]:
        column[index] = _agreement(index, episodes[index])
    return column


def _agreement(index: int, episode: Episode) -> float:
    answer = episode.metadata.get("answer", episode.reference)
    if answer is None or (isinstance(answer, str) and not answer.strip()):
        return math.nan
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise RewardError(f"episode {index}: its answer must be a string or a number, got {type(answer).__name__}")
    return agreement(episode.response, str(answer))


def _whole_number(text: str) -> float | None:
    """The value of a text that is one number; None for other text, or a number too large for a float."""
    match = NUMBER.fullmatch(text.strip(PUNCTUATION))
    return _value(match[0]) if match and math.isfinite(_value(match[0])) else None


def _value(digits: str) -> float:
    return float(digits.replace(",", "").replace("_", "").replace("−", "-"))  # noqa: RUF001


def _word_set(text: str) -> set[str]:
    return {word for word in (word.strip(PUNCTUATION) for word in text.split()) if word}
