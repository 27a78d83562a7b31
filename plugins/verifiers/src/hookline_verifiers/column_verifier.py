"""The base of the four verifiers: verifies a whole batch from its feature table, and one response as a batch of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

from hookline.text_verifier import TextVerifier
from hookline_hookspecs import Episode, EpisodeBatch, VerificationReport, hookimpl

if TYPE_CHECKING:
    from hookline.rewards import FeatureTable, PhraseList, ReportColumn

__all__ = ["Bounds", "ColumnVerifier", "Phrases", "VerifierOptions", "quoted", "word_list"]


class Bounds:
    """Bounds on an option, in pydantic's terms: `Annotated[int, Bounds(ge=0)]`.

    Every command imports this module, and pydantic's own marks would import pydantic, which takes longer than the rest.
    """

    def __init__(self, **limits: Any) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), **self._limits}


Phrases = tuple[Annotated[str, Bounds(strip_whitespace=True, min_length=1)], ...]
"""Words or phrases from the user's config, none of them empty."""


@dataclass(frozen=True, kw_only=True)
class VerifierOptions:
    """Options of every verifier."""

    weight: Annotated[float, Bounds(ge=0, allow_inf_nan=False)] = 1.0
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
        from hookline.rewards import FeatureTable

        return self.judge(FeatureTable.of(EpisodeBatch([Episode(prompt, response)]), [self]))[0]

    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> Mapping[str, ReportColumn]:
        from hookline.rewards import FeatureTable

        return {self.name: self.judge(FeatureTable.of(batch, [self]))}


def word_list(name: str, more: Phrases = (), without: Phrases = ()) -> PhraseList:
    """One of the word lists in `data/`, with phrases added and removed."""
    from hookline.rewards import PhraseList

    text = resources.files("hookline_verifiers").joinpath(f"data/{name}.txt").read_text(encoding="utf-8")
    return PhraseList.of_lines(name, text, more=more, without=without)


def quoted(phrases: list[str]) -> str:
    """Up to five phrases in quotes, for a message."""
    shown = "', '".join(phrases[:5])
    return f"'{shown}' and {len(phrases) - 5} more" if len(phrases) > 5 else f"'{shown}'"
