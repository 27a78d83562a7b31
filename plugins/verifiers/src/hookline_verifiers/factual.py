"""Checks whether sweeping claims in a response come with support. It does not check facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from hookline_verifiers.column_verifier import ColumnVerifier, Phrases, VerifierOptions, quoted, word_list

if TYPE_CHECKING:
    from hookline.rewards import FeatureTable, PhraseList, ReportColumn

__all__ = ["FactualVerifier", "Options"]

CLAIM_COST: Final = 0.35


@dataclass(frozen=True, kw_only=True)
class Options(VerifierOptions):
    """Phrases to add to the built-in word lists, and phrases to remove."""

    claims: Phrases = ()
    """More phrases that claim too much."""
    support: Phrases = ()
    """More phrases that give a source or a reason."""
    allow: Phrases = ()
    """Phrases to remove from both lists."""


class FactualVerifier(ColumnVerifier):
    """Verifies that sweeping claims in a response come with support.

    PASS if there are no more claims than phrases of support, WARNING for one more, FAIL for two or more.
    """

    name = "factual"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._options = options

    @cached_property
    def phrase_lists(self) -> tuple[PhraseList, PhraseList]:  # type: ignore[override]  # read when first needed
        own = self._options
        return (
            word_list("claims", more=own.claims, without=own.allow),
            word_list("support", more=own.support, without=own.allow),
        )

    def judge(self, features: FeatureTable) -> ReportColumn:
        import numpy as np

        from hookline.rewards import ReportColumn, result_codes

        claim_phrases, support_phrases = self.phrase_lists
        claims, support = features.count(claim_phrases), features.count(support_phrases)
        unsupported = np.maximum(claims - support, 0.0)
        scores = np.where(features.words > 0, np.maximum(1.0 - CLAIM_COST * unsupported, 0.0), 0.0)

        find_claims = features.finder(claim_phrases)

        def message(index: int) -> str:
            if not features.words[index]:
                return "no words"
            if unsupported[index]:
                return f"sweeping claims ({quoted(find_claims(index))}) with too little support"
            return "no sweeping claim without support"

        def details(index: int) -> Mapping[str, Any]:
            return {
                "claims": find_claims(index),
                "claim_count": int(claims[index]),
                "support_count": int(support[index]),
            }

        codes = result_codes(scores, pass_from=1.0, warn_from=0.5)
        return ReportColumn(scores, codes, message=message, details=details)
