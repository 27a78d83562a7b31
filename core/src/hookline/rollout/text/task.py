"""What a text lesson is made of: problems, a checker, and a tokenizer."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hookline.errors import HooklineError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CharacterTokenizer", "Checker", "TextProblem", "TextTask", "TokenizerError", "exact_match"]

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


class TextProblem(NamedTuple):
    """One prompt, the answer that is expected, and whatever else a checker needs to judge a response."""

    prompt: str
    answer: str
    metadata: Mapping[str, Any] | None = None


Problems = Sequence[TextProblem | tuple[str, str]] | Callable[["np.random.Generator"], TextProblem | tuple[str, str]]

Checker = Callable[[TextProblem, str], float | None]
"""From a problem and the response to it to a reward, or None when the problem cannot be judged."""


def exact_match(problem: TextProblem, response: str) -> float:
    """1 for the answer and nothing else, but for space around it; 0 for all other responses."""
    return float(response.strip() == problem.answer.strip())


@dataclass(frozen=True)
class TextTask:
    """The environment of a text lesson."""

    problems: Problems
    """Problems to draw from, or a function that makes one."""
    checker: Checker = exact_match
    max_new_tokens: int = 16
    """How long a response may be, its end-of-text token included."""
    held_out: Problems | None = None
    """Problems for evaluations, which training never sees; None for those of training."""
    target_length: int | None = None
    """How many words a response should have, for rewards and verifiers that ask; None for what they expect of any."""

    def draw(self, generator: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        """A problem by chance, to train on or to be evaluated by."""
        problems = self.problems if self.held_out is None or not held_out else self.held_out
        if callable(problems):
            return TextProblem(*problems(generator))
        return TextProblem(*problems[int(generator.integers(len(problems)))])
