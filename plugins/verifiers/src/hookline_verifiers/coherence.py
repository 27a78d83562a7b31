"""Whether a response reads like language: words that vary, sentences that end, no endless words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field

from hookline.rewards import FeatureTable, ReportColumn, result_codes
from hookline_verifiers.column_verifier import ColumnVerifier, VerifierOptions

__all__ = ["CoherenceVerifier", "Options"]

VARIED: Final = 0.5
"""The share of different words from which on a response does not repeat itself."""
LONGEST_SENTENCE: Final = 40.0
"""Words. A sentence of three times as many is none."""
VARIETY_PART, SENTENCES_PART, WORDS_PART = 0.6, 0.25, 0.15


class Options(VerifierOptions):
    """Scores from which on a response passes, and passes with a warning."""

    pass_from: Annotated[float, Field(ge=0, le=1)] = 0.7
    warn_from: Annotated[float, Field(ge=0, le=1)] = 0.4


class CoherenceVerifier(ColumnVerifier):
    """Most of the score is for variety, a quarter for sentences that end in time, the rest for usual words."""

    name = "coherence"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._options = options

    def judge(self, features: FeatureTable) -> ReportColumn:
        words = np.maximum(features.words, 1.0)
        unique_share = features.unique_words / words
        long_share = features.long_words / words
        per_sentence = words / np.maximum(features.sentence_ends, 1.0)
        sentences = np.clip(1.5 - per_sentence / (2.0 * LONGEST_SENTENCE), 0.0, 1.0)
        sentences = np.where(features.sentence_ends > 0, sentences, sentences / 2.0)
        variety = np.minimum(unique_share / VARIED, 1.0)
        scores = VARIETY_PART * variety + SENTENCES_PART * sentences + WORDS_PART * (1.0 - long_share)
        scores = np.where(features.words > 0, np.minimum(scores, 1.0), 0.0)

        def message(index: int) -> str:
            if not features.words[index]:
                return "no words"
            found = []
            # As plain numbers: for one episode at a time they are far quicker than those of an array.
            unique, length, long = unique_share.item(index), per_sentence.item(index), long_share.item(index)
            if unique < VARIED:
                found.append(f"only {unique:.0%} of the words are different")
            if not features.sentence_ends[index]:
                found.append("no sentence ends")
            if length > LONGEST_SENTENCE:
                found.append(f"{length:.0f} words a sentence")
            if long:
                found.append(f"{long:.0%} of the words are very long")
            return ", ".join(found) or "varied words in sentences"

        def details(index: int) -> Mapping[str, Any]:
            return {
                "unique_share": float(unique_share[index]),
                "long_word_share": float(long_share[index]),
                "sentences": int(features.sentence_ends[index]),
                "words_per_sentence": float(per_sentence[index]),
            }

        codes = result_codes(scores, pass_from=self._options.pass_from, warn_from=self._options.warn_from)
        return ReportColumn(scores, codes, message=message, details=details)
