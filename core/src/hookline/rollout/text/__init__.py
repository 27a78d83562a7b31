"""Text lessons: problems, checkers, a tokenizer, and the lessons that ship with Hookline."""

from hookline.rollout.text.arithmetic import ARITHMETIC_LEVELS, ArithmeticProblems, arithmetic_lessons
from hookline.rollout.text.problems import CharacterTokenizer, Checker, TextProblem, TextTask, exact_match
from hookline.rollout.text.reasoning import reasoning_lesson

__all__ = [
    "ARITHMETIC_LEVELS",
    "ArithmeticProblems",
    "CharacterTokenizer",
    "Checker",
    "TextProblem",
    "TextTask",
    "arithmetic_lessons",
    "exact_match",
    "reasoning_lesson",
]
