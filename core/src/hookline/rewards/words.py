"""Texts as folded bytes, and the words in them: one pass over a whole batch."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "EDGE",
    "LONG_WORD",
    "SENTENCE_ENDS",
    "TextBlock",
    "WordColumns",
    "canonical",
    "is_word_character",
    "read_words",
]

EDGE: Final = b"\xff"

WHITESPACE: Final = b" \t\n\v\f\r\x1c\x1d\x1e\x1f"
"""The ASCII characters that `str.split` splits at."""

FOLD: Final = bytes(0x20 if byte in WHITESPACE else byte for byte in bytes(range(256)).lower())
"""What ASCII text becomes: lower case, and every white space a space."""

UNSPACED_SCRIPTS: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


def canonical(text: str) -> str:
    """Fold case, compose characters, and put one space for each run of white space."""
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())
    return " ".join(folded.split())


def is_word_character(character: str) -> bool:
    """Whether a character beside a phrase makes it part of a longer word.

    Marks that combine with a letter do. Letters of scripts that put no spaces between words do not.
    """
    if character.isalnum() or character == "_":
        code = ord(character)
        return not any(first <= code <= last for first, last in UNSPACED_SCRIPTS)
    return unicodedata.category(character).startswith("M")


@dataclass(frozen=True, eq=False)
class TextBlock:
    """The canonical texts of a batch, one after the other in one buffer."""

    data: bytes
    starts: npt.NDArray[np.int64]
    """Where each text begins in the buffer."""
    ends: npt.NDArray[np.int64]
    """Where each text ends: the place of the edge after it."""
    is_ascii: bool

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, texts: Sequence[str]) -> TextBlock:
        encoded = [
            text.encode() if text.isascii() else canonical(text).encode("utf-8", "surrogatepass") for text in texts
        ]
        data = EDGE.join([b"", *encoded, b""] if encoded else [b"", b""]).translate(FOLD)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ends = np.cumsum(lengths + 1)
        block = cls(data, ends - lengths, ends, all(map(str.isascii, texts)))
        return block._without_spare_spaces()

    def _without_spare_spaces(self) -> TextBlock:
        """Leave one space between words, and none at the start or end of a text."""
        data = np.frombuffer(self.data, np.uint8)
        space, edge = data == 0x20, data == EDGE[0]
        between = space | edge
        spare = space[1:-1] & (between[:-2] | edge[2:])
        if not spare.any():
            return self
        kept = np.delete(data, np.flatnonzero(spare) + 1)
        # A text of spaces only keeps its last one if it has several: that one is spare now.
        ends = np.flatnonzero(kept == EDGE[0])
        return TextBlock(kept.tobytes(), ends[:-1] + 1, ends[1:], self.is_ascii)._without_spare_spaces()

    def parts(self, size: int) -> Iterator[TextBlock]:
        """The same texts in blocks of at most so many."""
        for first in range(0, len(self), size):
            starts, ends = self.starts[first : first + size], self.ends[first : first + size]
            offset = int(starts[0]) - 1
            yield TextBlock(self.data[offset : int(ends[-1]) + 1], starts - offset, ends - offset, self.is_ascii)

    def character_before(self, place: int) -> str:
        """The character that ends at a place, which is not at the start of a text."""
        start = place - 1
        while self.data[start] & 0xC0 == 0x80:
            start -= 1
        return self.data[start:place].decode("utf-8", "surrogatepass")

    def character_at(self, place: int) -> str:
        end = place + 1
        while self.data[end] & 0xC0 == 0x80:
            end += 1
        return self.data[place:end].decode("utf-8", "surrogatepass")

    def texts_of(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The text that each place in the buffer belongs to."""
        return np.searchsorted(self.ends, places, side="right").astype(np.int64, copy=False)


LONG_WORD: Final = 20
"""A word of more characters than this is no word of a language: it is a very long one."""

SENTENCE_ENDS: Final = "…。！？｡؟۔।॥"  # noqa: RUF001
"""What ends a sentence outside ASCII, wherever it stands. `.`, `!` and `?` do unless something follows them."""

TEXTS_AT_ONCE: Final = 512
"""So many responses and what is made of them on the way stay in the processor's cache, which halves the time."""

SPACE: Final = 1
STOP: Final = 2
FOLLOWS: Final = 3
CONTINUES: Final = 4
KINDS: Final = bytes(
    SPACE
    if byte in (0x20, EDGE[0])
    else STOP
    if byte in b".!?"
    else FOLLOWS
    if byte < 0x80 and (chr(byte).isalnum() or byte == ord("_"))
    else CONTINUES
    if byte & 0xC0 == 0x80
    else 0
    for byte in range(256)
)
"""What each byte is: white space, an ASCII stop, what a stop may not be followed by, the rest of a character."""

HASHED_BY_COLUMN: Final = 64
"""Bytes of a word that are hashed for all words together; the few words that are longer are hashed one by one."""
WIDEST_TABLE: Final = 512
"""Words of a text up to which its hashes are sorted together with those of other texts."""
NO_WORD: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
FIRST_BYTES: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)

Integers = npt.NDArray[np.int64]

# glibc gives freed arrays back to the kernel until it has seen a large one freed; getting them again page by page, for
# every batch, would double the time of the read. A process that has a model in it has long freed a large one.
np.empty(31 * 1024 * 1024, np.uint8)


@dataclass(frozen=True)
class WordColumns:
    """One number for each text."""

    words: npt.NDArray[np.float64]
    unique_words: npt.NDArray[np.float64]
    long_words: npt.NDArray[np.float64]
    sentence_ends: npt.NDArray[np.float64]


def read_words(block: TextBlock) -> WordColumns:
    """Find and count the words of all texts."""
    parts = [_read_part(part) for part in block.parts(TEXTS_AT_ONCE)]
    columns = {own.name: [getattr(part, own.name) for part in parts] for own in fields(WordColumns)}
    return WordColumns(**{name: np.concatenate(column or [np.zeros(0)]) for name, column in columns.items()})


def _read_part(block: TextBlock) -> WordColumns:
    kinds = np.frombuffer(block.data.translate(KINDS), np.uint8)
    between = np.flatnonzero(kinds == SPACE)  # one place between two words, and one at each end of a text
    starts, ends = between[:-1] + 1, between[1:]
    empty_texts = np.flatnonzero(block.starts == block.ends)
    if len(empty_texts):
        words = np.flatnonzero(starts != ends)
        starts, ends = starts[words], ends[words]
    first_word = np.searchsorted(starts, block.starts)
    past_word = np.searchsorted(starts, block.ends)
    lengths = _lengths_in_characters(block, kinds, starts, ends)
    return WordColumns(
        words=(past_word - first_word).astype(np.float64),
        unique_words=_count_different(_hash_words(block, starts, ends), first_word, past_word).astype(np.float64),
        long_words=_per_text(np.flatnonzero(lengths > LONG_WORD), first_word, past_word),
        sentence_ends=_sentence_ends(block, kinds),
    )


def _per_text(places: Integers, starts: Integers, ends: Integers) -> npt.NDArray[np.float64]:
    """How many of the sorted places lie between each start and end."""
    return (np.searchsorted(places, ends) - np.searchsorted(places, starts)).astype(np.float64)


def _lengths_in_characters(
    block: TextBlock, kinds: npt.NDArray[np.uint8], starts: Integers, ends: Integers
) -> Integers:
    lengths: Integers = ends - starts
    if block.is_ascii:
        return lengths
    rests = np.flatnonzero(kinds == CONTINUES)
    return lengths - (np.searchsorted(rests, ends) - np.searchsorted(rests, starts))


def _sentence_ends(block: TextBlock, kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    stops = np.flatnonzero(kinds == STOP)
    after = kinds[stops + 1]
    count = _per_text(stops[(after != STOP) & (after != FOLLOWS)], block.starts, block.ends)
    if not block.is_ascii:
        for mark in SENTENCE_ENDS:
            count += _per_text(_occurrences(block.data, mark.encode()), block.starts, block.ends)
    return count


def _occurrences(data: bytes, mark: bytes) -> Integers:
    places = []
    place = data.find(mark)
    while place >= 0:
        places.append(place)
        place = data.find(mark, place + 1)
    return np.array(places, np.int64)


def _count_different(keys: npt.NDArray[np.uint64], first_word: Integers, past_word: Integers) -> Integers:
    """How many different keys each text has: a row of a table for each text, sorted, and looked at for neighbours."""
    counts = past_word - first_word
    different = np.zeros(len(counts), np.int64)
    long_texts = counts > WIDEST_TABLE
    for text in np.flatnonzero(long_texts).tolist():
        different[text] = len(np.unique(keys[first_word[text] : past_word[text]]))
    if long_texts.any():
        keys = keys[~np.repeat(long_texts, counts)]
    rows = counts[~long_texts]
    width = max(1, int(rows.max(initial=0)))
    table = np.full((len(rows), width), NO_WORD)
    table[np.arange(width) < rows[:, None]] = keys
    table.sort(axis=1)
    changes = (table[:, 1:] != table[:, :-1]).sum(axis=1)
    different[~long_texts] = changes + 1 - (rows < width)  # but for what fills up the row
    return different


def _hash_words(block: TextBlock, starts: Integers, ends: Integers) -> npt.NDArray[np.uint64]:
    """64 bits for each word, by which words are told apart."""
    padded = np.frombuffer(block.data + bytes(8), np.uint8)
    # Eight bytes from every place on, as one number; the view is not aligned, which numpy can read.
    eight_bytes: npt.NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    lengths = ends - starts
    keys = eight_bytes[starts]
    keys &= FIRST_BYTES.take(lengths, mode="clip")
    # Words of up to eight bytes are their own hash, but for those that end in NULs: hence the length.
    keys *= GOLDEN
    keys += lengths.view(np.uint64)
    longer, offset = np.flatnonzero(lengths > 8), 8
    while len(longer) and offset < HASHED_BY_COLUMN:
        rest = eight_bytes[starts[longer] + offset]
        rest &= FIRST_BYTES.take(lengths[longer] - offset, mode="clip")
        mixed = (keys[longer] ^ rest) * GOLDEN
        keys[longer] = mixed ^ (mixed >> np.uint64(32))
        offset += 8
        longer = longer[lengths[longer] > offset]
    for word in longer.tolist():
        keys[word] = hash(block.data[starts[word] : ends[word]]) & 0xFFFFFFFFFFFFFFFF
    return keys
