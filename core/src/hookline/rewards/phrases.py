"""Lists of words and phrases, and one Aho-Corasick automaton that finds them all in one pass over a batch.

Phrases match whole words, ignoring case and the amount of white space: "kill" does not match in "skill".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Final

import ahocorasick_rs
import numpy as np
import numpy.typing as npt

from hookline.rewards.words import TextBlock, canonical, is_word_character

__all__ = ["Automaton", "PhraseList", "PhraseMatches", "automaton_for"]

NO_WORD: Final = 0
WORD: Final = 1
NOT_ASCII: Final = 2
NEIGHBOUR: Final = np.array(
    [NOT_ASCII if byte > 0x7F else int(chr(byte).isalnum() or byte == ord("_")) for byte in range(0xFF)] + [NO_WORD],
    np.uint8,
)
"""Whether a byte next to a match belongs to a word. 0xFF, the last, is the edge between texts."""


@dataclass(frozen=True)
class PhraseList:
    """A named list of words and phrases to search for."""

    name: str
    phrases: tuple[str, ...]
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.phrases)))
        for phrase in self.phrases:
            if not isinstance(phrase, str) or not phrase.strip():
                raise ValueError(f"phrase list {self.name!r} has {phrase!r}: every phrase must be a non-empty string")

    def __hash__(self) -> int:
        # Computed once: lists are dictionary keys, looked up for every message about an episode.
        return self._hash

    @classmethod
    def of_lines(cls, name: str, text: str, *, more: Iterable[str] = (), without: Iterable[str] = ()) -> PhraseList:
        """The phrases in the text of a word-list file: one per line, comments after `#`.

        :param more: phrases to add.
        :param without: phrases to leave out.
        """
        unwanted = {canonical(phrase) for phrase in without}
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        phrases = dict.fromkeys(canonical(line) for line in chain(lines, more) if line)
        return cls(name, tuple(phrase for phrase in phrases if phrase not in unwanted))


@dataclass(frozen=True, eq=False)
class PhraseMatches:
    """Where phrases were found in the texts of one batch."""

    automaton: Automaton
    text_count: int
    patterns: npt.NDArray[np.int64]
    """The pattern of each match."""
    texts: npt.NDArray[np.int64]
    """The text of each match, in order."""

    def count(self, phrases: PhraseList) -> npt.NDArray[np.int64]:
        """How often the phrases of a list occur in each text."""
        if not len(self.patterns):
            return np.zeros(self.text_count, np.int64)
        of_list = self.automaton.members(phrases)[self.patterns]
        return np.bincount(self.texts[of_list], minlength=self.text_count)

    def finder(self, phrases: PhraseList) -> Callable[[int], list[str]]:
        """A function that takes a text's index and returns the phrases of a list in it, each once, sorted."""
        wanted = self.automaton.member_ids(phrases)
        names = self.automaton.patterns

        def find(text: int) -> list[str]:
            patterns, bounds = self._by_text
            return [
                names[pattern] for pattern in sorted(wanted.intersection(patterns[bounds[text] : bounds[text + 1]]))
            ]

        return find

    def distinct(self, phrases: PhraseList) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Texts and patterns of the matches of a list, without repetitions of a pattern in a text."""
        of_list = self.automaton.members(phrases)[self.patterns]
        pairs = np.array(sorted(set(self._pairs()[of_list].tolist())), np.int64)
        texts, patterns = np.divmod(pairs, max(1, len(self.automaton.patterns)))
        return texts, patterns

    def _pairs(self) -> npt.NDArray[np.int64]:
        """Text and pattern of each match, encoded as one number."""
        return self.texts * len(self.automaton.patterns) + self.patterns

    @cached_property
    def _by_text(self) -> tuple[list[int], list[int]]:
        """The patterns of all matches, and where those of each text begin among them."""
        return self.patterns.tolist(), np.searchsorted(self.texts, np.arange(self.text_count + 1)).tolist()

    def contains(self, texts: npt.NDArray[np.int64], patterns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """For each pair of a text and a pattern: whether the text contains the pattern."""
        pairs = texts * len(self.automaton.patterns) + patterns
        known = set(self._pairs().tolist())  # small, so a set is faster than sorting
        return np.fromiter(map(known.__contains__, pairs.tolist()), bool, len(pairs))


class Automaton:
    """Finds the phrases of several lists in one pass."""

    def __init__(self, lists: tuple[PhraseList, ...]) -> None:
        patterns = {canonical(phrase) for phrases in lists for phrase in phrases.phrases}
        self.patterns: Final = sorted(patterns, key=lambda pattern: (not pattern.isascii(), pattern))
        self._ids = {pattern: number for number, pattern in enumerate(self.patterns)}
        self._member_ids = {phrases: frozenset(self.ids(phrases.phrases)) for phrases in lists}
        self._members = {
            phrases: np.fromiter((number in own for number in range(len(self.patterns))), bool, len(self.patterns))
            for phrases, own in self._member_ids.items()
        }
        self._binds_left = np.array([is_word_character(pattern[0]) for pattern in self.patterns], bool)
        self._binds_right = np.array([is_word_character(pattern[-1]) for pattern in self.patterns], bool)

    @cached_property
    def _search(self) -> ahocorasick_rs.BytesAhoCorasick:
        return _searcher(self.patterns)

    @cached_property
    def _search_ascii(self) -> ahocorasick_rs.BytesAhoCorasick:
        """For ASCII texts. ASCII patterns are sorted first, so they have the same numbers in both searchers."""
        return _searcher([pattern for pattern in self.patterns if pattern.isascii()])

    def __contains__(self, phrases: PhraseList) -> bool:
        return phrases in self._members

    def members(self, phrases: PhraseList) -> npt.NDArray[np.bool_]:
        """Which patterns belong to a list."""
        return self._members[phrases]

    def member_ids(self, phrases: PhraseList) -> frozenset[int]:
        return self._member_ids[phrases]

    def ids(self, phrases: Iterable[str]) -> list[int]:
        """The pattern numbers of some phrases, without repetitions."""
        return list(dict.fromkeys(self._ids[canonical(phrase)] for phrase in phrases))

    def scan(self, block: TextBlock) -> PhraseMatches:
        """Find all phrases in all texts."""
        search = self._search_ascii if block.is_ascii else self._search
        found = search.find_matches_as_indexes(block.data, overlapping=True)
        flat = np.fromiter(chain.from_iterable(found), np.int64, 3 * len(found)).reshape(-1, 3)
        patterns, starts, ends = flat.T
        whole = ~(self._continues_left(block, patterns, starts) | self._continues_right(block, patterns, ends))
        return PhraseMatches(self, len(block), patterns[whole], block.texts_of(starts[whole]))

    def _continues_left(
        self, block: TextBlock, patterns: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        neighbours = NEIGHBOUR[np.frombuffer(block.data, np.uint8)[starts - 1]]
        for match in np.flatnonzero(neighbours == NOT_ASCII).tolist():
            neighbours[match] = is_word_character(block.character_before(int(starts[match])))
        continues: npt.NDArray[np.bool_] = self._binds_left[patterns] & (neighbours == WORD)
        return continues

    def _continues_right(
        self, block: TextBlock, patterns: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        neighbours = NEIGHBOUR[np.frombuffer(block.data, np.uint8)[ends]]
        for match in np.flatnonzero(neighbours == NOT_ASCII).tolist():
            neighbours[match] = is_word_character(block.character_at(int(ends[match])))
        continues: npt.NDArray[np.bool_] = self._binds_right[patterns] & (neighbours == WORD)
        return continues


def _searcher(patterns: list[str]) -> ahocorasick_rs.BytesAhoCorasick:
    # For hundreds of phrases the default implementation is four times slower.
    return ahocorasick_rs.BytesAhoCorasick(
        [pattern.encode("utf-8", "surrogatepass") for pattern in patterns],
        implementation=ahocorasick_rs.Implementation.DFA,
    )


@lru_cache(maxsize=32)
def automaton_for(lists: tuple[PhraseList, ...]) -> Automaton:
    """The automaton of these lists, cached."""
    return Automaton(lists)
