"""Text lessons: problems, tokens, sampling, and the lessons that ship with Hookline."""

from hookline.rollout.text.arithmetic import ArithmeticProblems, arithmetic_lessons
from hookline.rollout.text.reasoning import reasoning_lesson
from hookline.rollout.text.task import CharacterTokenizer, TextProblem, TextTask, exact_match

__all__ = [
    "ArithmeticProblems",
    "CharacterTokenizer",
    "TextProblem",
    "TextTask",
    "arithmetic_lessons",
    "exact_match",
    "reasoning_lesson",
]
