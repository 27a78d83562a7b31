"""The feature table: each text of a batch is read once, and all rewards and verifiers share the result.

The reward processor sets `batch.features` before `pre_rewards`. A plugin declares the phrases that it counts in its
attribute `phrase_lists`. The first use of any column searches for all of them in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from hookline.rewards.phrases import Automaton, PhraseList, PhraseMatches, automaton_for
from hookline.rewards.words import TextBlock, WordColumns, read_words
from hookline_hookspecs import EpisodeBatch

__all__ = ["Column", "FeatureTable", "Flags"]

Column = npt.NDArray[np.float64]
"""One number for each episode of a batch."""
Flags = npt.NDArray[np.bool_]
"""Yes or no for each episode of a batch."""


class FeatureTable:
    """Measurements of the texts of a batch, one column each. Columns are computed when first used."""

    def __init__(self, responses: Sequence[str], prompts: Sequence[str] = ()) -> None:
        self._responses: Final = responses
        self._prompts: Final = prompts
        self._requested: dict[PhraseList, None] = {}

    @classmethod
    def of(cls, batch: EpisodeBatch, plugins: Iterable[object] = ()) -> FeatureTable:
        """The table of a batch. A batch without one gets a new table, with the phrase lists of these plugins."""
        if isinstance(batch.features, cls):
            return batch.features
        table = cls([episode.response for episode in batch.episodes], [episode.prompt for episode in batch.episodes])
        for plugin in plugins:
            for phrases in getattr(plugin, "phrase_lists", ()):
                table.request(phrases)
        return table

    def __len__(self) -> int:
        return len(self._responses)

    def request(self, phrases: PhraseList) -> None:
        """Search for these phrases too, in the one pass over the responses."""
        self._requested[phrases] = None

    @property
    def words(self) -> Column:
        """Words, separated by white space."""
        return self._word_columns.words

    @property
    def unique_words(self) -> Column:
        """Distinct words, ignoring case."""
        return self._word_columns.unique_words

    @property
    def long_words(self) -> Column:
        """Words of more than 20 characters."""
        return self._word_columns.long_words

    @property
    def sentence_ends(self) -> Column:
        """Full stops, question and exclamation marks that end a sentence, in any script."""
        return self._word_columns.sentence_ends

    def count(self, phrases: PhraseList) -> Column:
        """How often the phrases occur in each response, as whole words, ignoring case."""
        return self.in_responses(phrases).count(phrases).astype(np.float64)

    def finder(self, phrases: PhraseList) -> Callable[[int], list[str]]:
        """A function that takes an episode's index and returns the phrases in its response, each once."""
        return self.in_responses(phrases).finder(phrases)

    def in_responses(self, phrases: PhraseList) -> PhraseMatches:
        """The matches in the responses. They include all requested phrase lists."""
        if phrases in self._automaton:
            return self._matches
        # Not requested in advance: scan again.
        return automaton_for((phrases,)).scan(self._block)

    def in_prompts(self, phrases: PhraseList) -> tuple[PhraseMatches, npt.NDArray[np.int64]]:
        """The matches in the distinct prompts, and the index of each episode's prompt among those."""
        automaton = self._automaton if phrases in self._automaton else automaton_for((phrases,))
        # Several responses may be sampled from one prompt: read it once.
        numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(self._prompts))}
        own = np.array([numbers[prompt] for prompt in self._prompts], np.int64)
        return automaton.scan(TextBlock.of(list(numbers))), own

    @cached_property
    def _block(self) -> TextBlock:
        return TextBlock.of(self._responses)

    @cached_property
    def _automaton(self) -> Automaton:
        return automaton_for(tuple(self._requested))

    @cached_property
    def _matches(self) -> PhraseMatches:
        return self._automaton.scan(self._block)

    @cached_property
    def _word_columns(self) -> WordColumns:
        return read_words(self._block)
