"""What a text lesson is: problems with a reference answer, and a checker that says how good a response is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Checker", "TextProblem", "TextTask", "exact_match"]


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
