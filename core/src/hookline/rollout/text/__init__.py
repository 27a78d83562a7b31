"""Text lessons: problems, checkers, a tokenizer, and the lessons that ship with Hookline."""

from hookline.rollout.text.arithmetic import ArithmeticProblems, arithmetic_lessons
from hookline.rollout.text.problems import CharacterTokenizer, TextProblem, TextTask, exact_match
from hookline.rollout.text.reasoning import reasoning_lesson

__all__ = [
    "ArithmeticProblems",
    "CharacterTokenizer",
    "TextProblem",
    "TextTask",
    "arithmetic_lessons",
    "exact_match",
    "reasoning_lesson",
]
