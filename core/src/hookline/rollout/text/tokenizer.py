"""Characters as tokens: all that a policy needs to read and write which learns on a desk."""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from hookline.plugins.errors import HooklineError

__all__ = ["CharacterTokenizer", "TokenizerError"]

PRINTABLE: Final = "\n" + string.digits + string.ascii_letters + string.punctuation + " "


class TokenizerError(HooklineError, ValueError):
    """A text has a character that the tokenizer does not know."""


@dataclass(frozen=True)
class CharacterTokenizer:
    """One token for each character of an alphabet. Token 0 is padding, token 1 the end of a text."""

    alphabet: str = PRINTABLE

    pad: Final = 0
    end: Final = 1

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) != len(self.alphabet):
            raise TokenizerError("an alphabet must have each of its characters once")

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.alphabet) + 2

    def encode(self, text: str) -> list[int]:
        try:
            return [self._tokens[character] for character in text]
        except KeyError as error:
            raise TokenizerError(
                f"the tokenizer does not know the character {error.args[0]!r} in {text!r}: "
                "give the worker's config a CharacterTokenizer whose alphabet has it"
            ) from None

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to its end; padding is left out."""
        characters = []
        for token in tokens:
            if token == self.end:
                break
            if token != self.pad:
                characters.append(self.alphabet[token - 2])
        return "".join(characters)

    @cached_property
    def _tokens(self) -> dict[str, int]:
        return {character: index + 2 for index, character in enumerate(self.alphabet)}
