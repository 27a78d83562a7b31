"""`TextTask`, the environment of one prompt and one response: problems and a checker. And a tokenizer."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from hookline.errors import HooklineError
from hookline.rollout.text.environment import Conversation, Limits, TextProblem

if TYPE_CHECKING:
    import numpy as np

    from hookline_hookspecs import Turn

__all__ = ["CharacterTokenizer", "Checker", "TextTask", "TokenizerError", "exact_match"]

PRINTABLE: Final = "\n" + string.digits + string.ascii_letters + string.punctuation + " "


class TokenizerError(HooklineError, ValueError):
    """A text contains a character that is not in the tokenizer's alphabet."""


@dataclass(frozen=True)
class CharacterTokenizer:
    """One token for each character of an alphabet. Token 0 is padding, token 1 the end of text."""

    alphabet: str = PRINTABLE

    pad: ClassVar[int] = 0
    end: ClassVar[tuple[int, ...]] = (1,)

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) != len(self.alphabet):
            raise TokenizerError("an alphabet must not repeat a character")

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.alphabet) + 2

    def encode(self, text: str) -> list[int]:
        try:
            return [self._tokens[character] for character in text]
        except KeyError as error:
            raise TokenizerError(
                f"the tokenizer does not know the character {error.args[0]!r} in {text!r}: "
                "set the worker config's tokenizer to a CharacterTokenizer whose alphabet has it"
            ) from None

    def encode_messages(self, messages: Sequence[Turn], before: Sequence[Turn] = ()) -> list[int]:
        """The texts as they are. Only the end token separates a response from what follows."""
        text = "".join(message.text for message in messages)
        return [*(self.end if before else ()), *self.encode(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the end token, without padding."""
        characters = []
        for token in tokens:
            if token in self.end:
                break
            if token != self.pad:
                characters.append(self.alphabet[token - 2])
        return "".join(characters)

    @cached_property
    def _tokens(self) -> dict[str, int]:
        return {character: index + 2 for index, character in enumerate(self.alphabet)}


Problems = Sequence[TextProblem | tuple[str, str]] | Callable[["np.random.Generator"], TextProblem | tuple[str, str]]

Checker = Callable[[TextProblem, str], float | None]
"""Scores a response to a problem. Returns None if it cannot be scored."""


def exact_match(problem: TextProblem, response: str) -> float:
    """1 if the response equals the answer, ignoring surrounding whitespace, else 0."""
    return float(response.strip() == problem.answer.strip())


@dataclass(frozen=True)
class TextTask:
    """An environment of one turn: the policy responds to a prompt, and a checker scores the response."""

    problems: Problems
    """A list of problems to draw from, or a function that draws one."""
    checker: Checker = exact_match
    max_new_tokens: int = 16
    """The maximum length of a response, including its end-of-text token."""
    held_out: Problems | None = None
    """Problems for evaluations, which are not used in training. None to evaluate on the training problems."""
    target_length: int | None = None
    """The number of words a response should have, for rewards and verifiers of length. None for their default."""

    @property
    def limits(self) -> Limits:
        return Limits(max_turns=1, max_new_tokens=self.max_new_tokens)

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        """Draw a random problem, for training or from the held-out ones."""
        problems = self.problems if self.held_out is None or not held_out else self.held_out
        drawn = problems(rng) if callable(problems) else problems[int(rng.integers(len(problems)))]
        problem = TextProblem(*drawn)
        if self.target_length is None:
            return problem
        return problem._replace(metadata={"target_length": self.target_length, **(problem.metadata or {})})

    def converse(self, problem: TextProblem) -> Conversation:
        response = yield problem.prompt
        return self.checker(problem, response)
