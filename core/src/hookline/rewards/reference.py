"""How well a response agrees with the answer that was expected."""

from __future__ import annotations

import math
import re
from typing import Final

from hookline.rewards.canonical import canonical

__all__ = ["agreement"]

NUMBER: Final = re.compile(r"[-+−]?(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?")  # noqa: RUF001
PUNCTUATION: Final = ".,;:!?\"'()[]{}…。！？«»“”‘’"  # noqa: RUF001


def agreement(response: str, reference: str) -> float:
    """From 0 to 1: 1 for the same answer, or the same number; else the overlap of their words (F1).

    Where a number is expected the last number of the response is its answer, right or wrong.
    """
    given, expected = canonical(response), canonical(reference)
    if given.strip(PUNCTUATION) == expected.strip(PUNCTUATION):
        return 1.0
    number = _whole_number(expected)
    if number is not None:
        numbers = NUMBER.findall(given)
        return float(bool(numbers) and math.isclose(_value(numbers[-1]), number, rel_tol=1e-9))
    given_words, expected_words = _word_set(given), _word_set(expected)
    total = len(given_words) + len(expected_words)
    return 2 * len(given_words & expected_words) / total if total else 0.0


def _whole_number(text: str) -> float | None:
    """The number that a text consists of. None for any other text, and for a number that is too large for a float."""
    match = NUMBER.fullmatch(text.strip(PUNCTUATION))
    return _value(match[0]) if match and math.isfinite(_value(match[0])) else None


def _value(digits: str) -> float:
    return float(digits.replace(",", "").replace("_", "").replace("−", "-"))  # noqa: RUF001


def _word_set(text: str) -> set[str]:
    return {word for word in (word.strip(PUNCTUATION) for word in text.split()) if word}
