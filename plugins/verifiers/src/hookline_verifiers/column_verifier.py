"""The base of the four verifiers: verifies a whole batch from its feature table, and one response as a batch of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from importlib import resources
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from hookline.rewards import FeatureTable, PhraseList, ReportColumn, TextVerifier
from hookline_hookspecs import Episode, EpisodeBatch, VerificationReport, hookimpl

__all__ = ["ColumnVerifier", "Phrases", "VerifierOptions", "quoted", "word_list"]

Phrases = tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...]
"""Words or phrases from the user's config, none of them empty."""


class VerifierOptions(BaseModel):
    """Options of every verifier."""

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Its weight in the combined score. With 0 it only appears in the details."""


class ColumnVerifier(TextVerifier):
    """A verifier that computes its reports from the columns of a feature table."""

    # Without a failed verifier, responses would pass unchecked.
    critical = True

    def __init__(self, options: VerifierOptions) -> None:
        self.weight = options.weight

    @abstractmethod
    def judge(self, features: FeatureTable) -> ReportColumn:
        """The reports of all responses of a batch."""

    def verify(self, prompt: str, response: str) -> VerificationReport:
        """Verify one response."""
        return self.judge(FeatureTable.of(EpisodeBatch([Episode(prompt, response)]), [self]))[0]

    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> Mapping[str, ReportColumn]:
        return {self.name: self.judge(FeatureTable.of(batch, [self]))}


def word_list(name: str, more: Phrases = (), without: Phrases = ()) -> PhraseList:
    """One of the word lists in `data/`, with phrases added and removed."""
    text = resources.files("hookline_verifiers").joinpath(f"data/{name}.txt").read_text(encoding="utf-8")
    return PhraseList.of_lines(name, text, more=more, without=without)


def quoted(phrases: list[str]) -> str:
    """Up to five phrases in quotes, for a message."""
    shown = "', '".join(phrases[:5])
    return f"'{shown}' and {len(phrases) - 5} more" if len(phrases) > 5 else f"'{shown}'"
