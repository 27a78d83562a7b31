"""`TextVerifier`: what a verifier of your own derives from, one prompt and one response at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from hookline.rewards.errors import RewardError
from hookline.rewards.phrases import PhraseList
from hookline_hookspecs import EpisodeBatch, VerificationReport, hookimpl
from hookline_hookspecs.errors import describe_error

__all__ = ["TextVerifier"]


class TextVerifier(ABC):
    """A verifier is a plugin: register it, or give it an entry point called `verify-<type>`.

    `name` is what its reports go by, the class's name unless it says otherwise. `weight` is its part in the combined
    score. Its FAIL is a FAIL of the whole pipeline, unless its weight is 0.
    """

    name: str = ""
    phrase_lists: Sequence[PhraseList] = ()
    """Phrases to be looked for as the texts are read, for a verifier that works on `batch.features`."""
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
                raise RewardError(f"verifier {name!r} failed on episode {index}: {describe_error(error)}") from error
        return {name: reports}
