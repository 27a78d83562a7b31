"""Texts as the rewards see them: case folded, composed, one space between words, and all of a batch in one buffer.

The buffer is UTF-8. A byte that UTF-8 never has stands before, between and after the texts, so that no word and no
phrase reaches from one into the next, and so that each byte of a text has a neighbour on both sides.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["EDGE", "TextBlock", "canonical", "is_word_character"]

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
