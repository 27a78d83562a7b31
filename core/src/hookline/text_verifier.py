"""`TextVerifier`: the base class of verifiers.

It is `hookline.rewards.TextVerifier`. It is apart because that package imports numpy, which takes longer than all of
`hookline plugins`, and verifiers are imported there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hookline_hookspecs import EpisodeBatch, VerificationReport, hookimpl
from hookline_hookspecs.errors import describe_error

if TYPE_CHECKING:
    from hookline.rewards import PhraseList

__all__ = ["TextVerifier"]


class TextVerifier(ABC):
    """Base class of verifiers. A verifier is a plugin: register it, or give it an entry point `verify-<type>`.

    `name` labels its reports and defaults to the name of the class. `weight` is its weight in the combined score. Its
    FAIL is a FAIL of the whole pipeline, unless its weight is 0.
    """

    name: str = ""
    phrase_lists: Sequence[PhraseList] = ()
    """Phrases that the verifier counts with `batch.features`."""
    weight: float = 1.0

    @abstractmethod
    def verify(self, prompt: str, response: str) -> VerificationReport:
        """Judge one response."""

    @hookimpl
    def verify_episodes(self, batch: EpisodeBatch) -> Mapping[str, Sequence[VerificationReport | None]]:
        name = self.name or type(self).__name__
        reports = []
        for index, episode in enumerate(batch):
            try:
                reports.append(self.verify(episode.prompt, episode.response))
            except Exception as error:
                from hookline.rewards import RewardError

                raise RewardError(f"verifier {name!r} failed on episode {index}: {describe_error(error)}") from error
        return {name: reports}
