"""Checks that a response reads like language: varied words, finished sentences, no very long words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from hookline_verifiers.column_verifier import Bounds, ColumnVerifier, VerifierOptions

if TYPE_CHECKING:
    from hookline.rewards import FeatureTable, ReportColumn

__all__ = ["CoherenceVerifier", "Options"]

MIN_UNIQUE_SHARE: Final = 0.5
"""A response with at least this share of unique words is not repetitive."""
MAX_SENTENCE_WORDS: Final = 40.0
"""Longer sentences lower the score. At three times as many words, sentences score 0."""
VARIETY_PART, SENTENCES_PART, WORDS_PART = 0.6, 0.25, 0.15


@dataclass(frozen=True, kw_only=True)
class Options(VerifierOptions):
    """The lowest scores for PASS and for WARNING."""

    pass_from: Annotated[float, Bounds(ge=0, le=1)] = 0.7
    """The lowest score that is a PASS."""
    warn_from: Annotated[float, Bounds(ge=0, le=1)] = 0.4
    """The lowest score that is a WARNING. A lower one is a FAIL."""


class CoherenceVerifier(ColumnVerifier):
    """Verifies that a response reads like language.

    The score is 60 % for unique words, 25 % for sentences of usual length, 15 % for words of usual length.
    """

    name = "coherence"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._options = options

    def judge(self, features: FeatureTable) -> ReportColumn:
        import numpy as np

        from hookline.rewards import ReportColumn, result_codes

        words = np.maximum(features.words, 1.0)
        unique_share = features.unique_words / words
        long_share = features.long_words / words
        per_sentence = words / np.maximum(features.sentence_ends, 1.0)
        sentences = np.clip(1.5 - per_sentence / (2.0 * MAX_SENTENCE_WORDS), 0.0, 1.0)
        sentences = np.where(features.sentence_ends > 0, sentences, sentences / 2.0)
        variety = np.minimum(unique_share / MIN_UNIQUE_SHARE, 1.0)
        scores = VARIETY_PART * variety + SENTENCES_PART * sentences + WORDS_PART * (1.0 - long_share)
        scores = np.where(features.words > 0, np.minimum(scores, 1.0), 0.0)

        def message(index: int) -> str:
            if not features.words[index]:
                return "no words"
            problems = []
            # As Python floats, which are much faster than NumPy scalars for single values.
            unique, length, long = unique_share.item(index), per_sentence.item(index), long_share.item(index)
            if unique < MIN_UNIQUE_SHARE:
                problems.append(f"only {unique:.0%} of the words are different")
            if not features.sentence_ends[index]:
                problems.append("no sentence ends")
            if length > MAX_SENTENCE_WORDS:
                problems.append(f"{length:.0f} words a sentence")
            if long:
                problems.append(f"{long:.0%} of the words are very long")
            return ", ".join(problems) or "varied words in sentences"

        def details(index: int) -> Mapping[str, Any]:
            return {
                "unique_share": float(unique_share[index]),
                "long_word_share": float(long_share[index]),
                "sentences": int(features.sentence_ends[index]),
                "words_per_sentence": float(per_sentence[index]),
            }

        codes = result_codes(scores, pass_from=self._options.pass_from, warn_from=self._options.warn_from)
        return ReportColumn(scores, codes, message=message, details=details)
