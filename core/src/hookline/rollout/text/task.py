"""What a text lesson is: problems with a reference answer, and a checker that says how good a response is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Checker", "TextProblem", "TextTask", "exact_match"]


class TextProblem(NamedTuple):
    """One prompt, and the answer that is expected."""

    prompt: str
    answer: str


Checker = Callable[[str, str], float | None]
"""From a response and the reference answer to a reward, or None when the problem cannot be judged."""


def exact_match(response: str, answer: str) -> float:
    """1 for the answer and nothing else, but for space around it; 0 for all other responses."""
    return float(response.strip() == answer.strip())


@dataclass(frozen=True)
class TextTask:
    """The environment of a text lesson."""

    problems: Sequence[TextProblem] | Callable[[np.random.Generator], TextProblem]
    """Problems to draw from, or a function that makes one."""
    checker: Checker = exact_match
    max_new_tokens: int = 16
    """How long a response may be, its end-of-text token included."""

    def draw(self, generator: np.random.Generator) -> TextProblem:
        """A problem by chance."""
        if callable(self.problems):
            return TextProblem(*self.problems(generator))
        return TextProblem(*self.problems[int(generator.integers(len(self.problems)))])
