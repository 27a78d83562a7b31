"""Arithmetic lessons of increasing difficulty. They need only a random number generator."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from hookline.errors import did_you_mean
from hookline.rollout.curriculum import Lesson
from hookline.rollout.errors import CurriculumError
from hookline.rollout.text.environment import TextProblem
from hookline.rollout.text.problems import TextTask

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ARITHMETIC_LEVELS", "ArithmeticProblems", "arithmetic_lessons"]

OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


HELD_OUT: Final = 10
"""One problem in this many is held out from training. They are the same in every run."""


@dataclass(frozen=True)
class ArithmeticProblems:
    """Draws problems such as `12+34=`, with numbers of up to `digits` digits."""

    digits: int | tuple[int, int] = 1
    """The digits of both numbers, or of each. The order of the two numbers is random."""
    operations: str = "+"
    part: Literal["all", "training", "held_out"] = "all"
    """Which problems are drawn: those for training, those held out for evaluation, or both."""

    def __post_init__(self) -> None:
        for symbol in self.operations:
            if symbol not in OPERATIONS:
                raise CurriculumError(f"there is no operation {symbol!r}; known are {' '.join(OPERATIONS)}")
        if min(self._digits_of_each) < 1 or not self.operations:
            raise CurriculumError("arithmetic needs at least one digit and one operation")

    @property
    def _digits_of_each(self) -> tuple[int, int]:
        return (self.digits, self.digits) if isinstance(self.digits, int) else self.digits

    def __call__(self, generator: np.random.Generator) -> TextProblem:
        while True:
            a, b = (int(generator.integers(10**digits)) for digits in self._digits_of_each)
            if generator.random() < 0.5:
                a, b = b, a
            symbol = self.operations[int(generator.integers(len(self.operations)))]
            prompt = f"{a}{symbol}{b}="
            is_held_out = zlib.crc32(prompt.encode()) % HELD_OUT == 0
            if self.part == "all" or is_held_out == (self.part == "held_out"):
                return TextProblem(prompt, str(OPERATIONS[symbol](a, b)))


ARITHMETIC_LEVELS: Final[Mapping[str, ArithmeticProblems]] = {
    "addition-1": ArithmeticProblems(1, "+"),
    "subtraction-1": ArithmeticProblems(1, "-"),
    "addition-1-2": ArithmeticProblems((1, 2), "+"),
    "addition-2": ArithmeticProblems(2, "+"),
    "subtraction-2": ArithmeticProblems(2, "-"),
    "addition-3": ArithmeticProblems(3, "+"),
    "multiplication-1": ArithmeticProblems(1, "*"),
    "mixed-2": ArithmeticProblems(2, "+-*"),
}
"""Each level builds on the one before it."""


def arithmetic_lessons(
    *levels: str, unlock_at: float = 0.8, stop_threshold: float = 0.95, max_new_tokens: int = 8
) -> list[Lesson]:
    """Lessons for these levels, or for all. Each is unlocked by a success of `unlock_at` in the one before it."""
    names = levels or tuple(ARITHMETIC_LEVELS)
    for name in names:
        if name not in ARITHMETIC_LEVELS:
            raise CurriculumError(
                f"there is no level {name!r} of arithmetic{did_you_mean(name, ARITHMETIC_LEVELS)}; "
                f"known are {', '.join(ARITHMETIC_LEVELS)}"
            )
    return [
        Lesson(
            lesson_id=name,
            environment=TextTask(
                replace(ARITHMETIC_LEVELS[name], part="training"),
                max_new_tokens=max_new_tokens,
                held_out=replace(ARITHMETIC_LEVELS[name], part="held_out"),
                target_length=1,
            ),
            dependencies={names[index - 1]: unlock_at} if index else {},
            stop_threshold=stop_threshold,
            category="arithmetic",
        )
        for index, name in enumerate(names)
    ]
