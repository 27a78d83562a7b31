"""Count the words and sentences of a batch of texts, in one vectorised pass over their bytes.

The texts of a batch lie one after the other in one buffer. Words are compared by a 64-bit hash of their bytes. The
plain way, `len(set(text.lower().split()))` for each text, takes five times as long: as much as rewards, verifiers and
filtering may take together.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
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
"""The byte before, between and after the texts of a buffer. UTF-8 never contains it."""

WHITESPACE: Final = b" \t\n\v\f\r\x1c\x1d\x1e\x1f"
"""The ASCII characters that `str.split` splits at."""

FOLD: Final = bytes(0x20 if byte in WHITESPACE else byte for byte in bytes(range(256)).lower())
"""Maps ASCII text to lower case, with a space for each white space character."""

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

LONG_WORD: Final = 20
"""A word of more characters than this counts as long."""

SENTENCE_ENDS: Final = "…。！？｡؟۔।॥"  # noqa: RUF001
"""Characters outside ASCII that always end a sentence. `.`, `!` and `?` do, unless a letter or digit follows."""

SPACE: Final = 1
STOP: Final = 2
WORD_CHARACTER: Final = 3
CONTINUATION: Final = 4
BYTE_CLASSES: Final = bytes(
    SPACE
    if byte in (0x20, EDGE[0])
    else STOP
    if byte in b".!?"
    else WORD_CHARACTER
    if byte < 0x80 and (chr(byte).isalnum() or byte == ord("_"))
    else CONTINUATION
    if byte & 0xC0 == 0x80
    else 0
    for byte in range(256)
)
"""The class of each byte: white space, ASCII stop, ASCII word character, continuation byte of UTF-8, or other (0)."""

TEXTS_AT_ONCE: Final = 512
"""The arrays made from this many responses stay in the processor's cache, which halves the time."""
HASHED_BY_COLUMN: Final = 64
"""Bytes of a word that are hashed for all words together. The few longer words are hashed one by one."""
WIDEST_TABLE: Final = 512
"""Texts with up to this many words are sorted together, in one table."""
NO_WORD: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
FIRST_BYTES: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks that keep the first 0 to 8 bytes of a little-endian number."""

Integers = npt.NDArray[np.int64]


def canonical(text: str) -> str:
    """The text case-folded and NFC-normalised, with one space for each run of white space."""
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())
    return " ".join(folded.split())


def is_word_character(character: str) -> bool:
    """Whether a phrase next to this character is only part of a longer word.

    True for letters, digits and combining marks. False for letters of scripts that put no spaces between words.
    """
    if character.isalnum() or character == "_":
        code = ord(character)
        return not any(first <= code <= last for first, last in UNSPACED_SCRIPTS)
    return unicodedata.category(character).startswith("M")


@dataclass(frozen=True, eq=False)
class TextBlock:
    """The canonical texts of a batch, one after the other in one buffer."""

    data: bytes
    starts: Integers
    """Where each text begins in the buffer."""
    ends: Integers
    """Where each text ends: the offset of the edge after it."""
    is_ascii: bool

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, texts: Sequence[str]) -> TextBlock:
        _keep_freed_memory()
        is_ascii = all(map(str.isascii, texts))
        if is_ascii:
            # Latin-1 has the edge as a character, so one join and one encoding do for all texts.
            data = EDGE.decode("latin-1").join(["", *texts, ""]).encode("latin-1")
            sizes = map(len, texts)
        else:
            encoded = [canonical(text).encode("utf-8", "surrogatepass") for text in texts]
            data = EDGE.join([b"", *encoded, b""])
            sizes = map(len, encoded)
        lengths = np.fromiter(sizes, np.int64, len(texts))
        ends = np.cumsum(lengths + 1)
        block = cls(data.translate(FOLD), ends - lengths, ends, is_ascii)
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
        # A text of several spaces still has one, which the second call removes.
        ends = np.flatnonzero(kept == EDGE[0])
        return TextBlock(kept.tobytes(), ends[:-1] + 1, ends[1:], self.is_ascii)._without_spare_spaces()

    def parts(self, size: int) -> Iterator[TextBlock]:
        """The same texts, in blocks of at most `size`."""
        for first in range(0, len(self), size):
            starts, ends = self.starts[first : first + size], self.ends[first : first + size]
            offset = int(starts[0]) - 1
            yield TextBlock(self.data[offset : int(ends[-1]) + 1], starts - offset, ends - offset, self.is_ascii)

    def character_before(self, offset: int) -> str:
        """The character that ends at this offset, which must not be the start of a text."""
        start = offset - 1
        while self.data[start] & 0xC0 == 0x80:
            start -= 1
        return self.data[start:offset].decode("utf-8", "surrogatepass")

    def character_at(self, offset: int) -> str:
        end = offset + 1
        while self.data[end] & 0xC0 == 0x80:
            end += 1
        return self.data[offset:end].decode("utf-8", "surrogatepass")

    def texts_of(self, offsets: Integers) -> Integers:
        """The number of the text that each offset belongs to."""
        return np.searchsorted(self.ends, offsets, side="right").astype(np.int64, copy=False)


@cache
def _keep_freed_memory() -> None:
    """Have glibc keep freed arrays for the next batch. Otherwise each batch takes about a quarter longer.

    By default glibc returns arrays above 128 kB to the kernel, and every batch pays for new pages. Freeing one large
    array raises that limit to its size. Its pages are never touched, so it takes no memory.
    """
    np.empty(31 * 1024 * 1024, np.uint8)


@dataclass(frozen=True)
class WordColumns:
    """One number for each text."""

    words: npt.NDArray[np.float64]
    unique_words: npt.NDArray[np.float64]
    long_words: npt.NDArray[np.float64]
    sentence_ends: npt.NDArray[np.float64]


def read_words(block: TextBlock) -> WordColumns:
    """Count words and sentences in all texts."""
    parts = [_read_part(part) for part in block.parts(TEXTS_AT_ONCE)]
    columns = {own.name: [getattr(part, own.name) for part in parts] for own in fields(WordColumns)}
    return WordColumns(**{name: np.concatenate(column or [np.zeros(0)]) for name, column in columns.items()})


def _read_part(block: TextBlock) -> WordColumns:
    classes = np.frombuffer(block.data.translate(BYTE_CLASSES), np.uint8)
    between = np.flatnonzero(classes == SPACE)  # one between two words, and one at each end of a text
    starts, ends = between[:-1] + 1, between[1:]
    empty_texts = np.flatnonzero(block.starts == block.ends)
    if len(empty_texts):
        words = np.flatnonzero(starts != ends)
        starts, ends = starts[words], ends[words]
    first_word = np.searchsorted(starts, block.starts)
    past_word = np.searchsorted(starts, block.ends)
    lengths = _lengths_in_characters(block, classes, starts, ends)
    return WordColumns(
        words=(past_word - first_word).astype(np.float64),
        unique_words=_count_distinct(_hash_words(block, starts, ends), first_word, past_word).astype(np.float64),
        long_words=_per_text(np.flatnonzero(lengths > LONG_WORD), first_word, past_word),
        sentence_ends=_sentence_ends(block, classes),
    )


def _per_text(offsets: Integers, starts: Integers, ends: Integers) -> npt.NDArray[np.float64]:
    """How many of the sorted offsets lie between each start and end."""
    return (np.searchsorted(offsets, ends) - np.searchsorted(offsets, starts)).astype(np.float64)


def _lengths_in_characters(
    block: TextBlock, classes: npt.NDArray[np.uint8], starts: Integers, ends: Integers
) -> Integers:
    lengths: Integers = ends - starts
    if block.is_ascii:
        return lengths
    continuations = np.flatnonzero(classes == CONTINUATION)
    return lengths - (np.searchsorted(continuations, ends) - np.searchsorted(continuations, starts))


def _sentence_ends(block: TextBlock, classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    stops = np.flatnonzero(classes == STOP)
    after = classes[stops + 1]
    count = _per_text(stops[(after != STOP) & (after != WORD_CHARACTER)], block.starts, block.ends)
    if not block.is_ascii:
        for mark in SENTENCE_ENDS:
            count += _per_text(_occurrences(block.data, mark.encode()), block.starts, block.ends)
    return count


def _occurrences(data: bytes, mark: bytes) -> Integers:
    offsets = []
    offset = data.find(mark)
    while offset >= 0:
        offsets.append(offset)
        offset = data.find(mark, offset + 1)
    return np.array(offsets, np.int64)


def _count_distinct(keys: npt.NDArray[np.uint64], first_word: Integers, past_word: Integers) -> Integers:
    """The number of distinct keys in each text. Each text is a row; in sorted rows equal keys are neighbours."""
    counts = past_word - first_word
    distinct = np.zeros(len(counts), np.int64)
    long_texts = counts > WIDEST_TABLE
    for text in np.flatnonzero(long_texts).tolist():
        distinct[text] = len(np.unique(keys[first_word[text] : past_word[text]]))
    if long_texts.any():
        keys = keys[~np.repeat(long_texts, counts)]
    rows = counts[~long_texts]
    width = max(1, int(rows.max(initial=0)))
    table = np.full((len(rows), width), NO_WORD)
    table[np.arange(width) < rows[:, None]] = keys
    table.sort(axis=1)
    changes = (table[:, 1:] != table[:, :-1]).sum(axis=1)
    distinct[~long_texts] = changes + 1 - (rows < width)  # the padding is one more value
    return distinct


def _hash_words(block: TextBlock, starts: Integers, ends: Integers) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each word."""
    padded = np.frombuffer(block.data + bytes(8), np.uint8)
    # Eight bytes from every offset on, as one number. The view is unaligned, which NumPy can read.
    eight_bytes: npt.NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    lengths = ends - starts
    keys = eight_bytes[starts]
    keys &= FIRST_BYTES.take(lengths, mode="clip")
    # For words of up to eight bytes this is exact. The length is added for words that end in NUL bytes.
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
