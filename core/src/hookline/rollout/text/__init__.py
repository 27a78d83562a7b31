"""Text lessons: the environment protocol, problems and checkers, a tokenizer, and the lessons of Hookline."""

from hookline.rollout.text.arithmetic import ARITHMETIC_LEVELS, ArithmeticProblems, arithmetic_lessons
from hookline.rollout.text.environment import (
    Conversation,
    LimitReached,
    Limits,
    Messages,
    TextEnvironment,
    TextProblem,
)
from hookline.rollout.text.problems import CharacterTokenizer, Checker, TextTask, exact_match

__all__ = [
    "ARITHMETIC_LEVELS",
    "ArithmeticProblems",
    "CharacterTokenizer",
    "Checker",
    "Conversation",
    "LimitReached",
    "Limits",
    "Messages",
    "TextEnvironment",
    "TextProblem",
    "TextTask",
    "arithmetic_lessons",
    "exact_match",
]
