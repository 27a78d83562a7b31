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


Problems = Sequence[TextProblem] | Callable[["np.random.Generator"], TextProblem]

Checker = Callable[[str, str], float | None]
"""From a response and the reference answer to a reward, or None when the problem cannot be judged."""


def exact_match(response: str, answer: str) -> float:
    """1 for the answer and nothing else, but for space around it; 0 for all other responses."""
    return float(response.strip() == answer.strip())


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
