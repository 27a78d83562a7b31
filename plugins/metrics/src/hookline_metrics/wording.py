"""Durations in words that a person would use."""

from __future__ import annotations

__all__ = ["age_in_words", "duration_in_words"]


def duration_in_words(seconds: float) -> str:
    """Such as `12 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    units = [("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60)]
    first = next((place for place, (_, count) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for unit, count in units[first : first + 2] if count) or "0 s"


def age_in_words(seconds: float) -> str:
    """The same by its largest unit alone."""
    words = duration_in_words(seconds).split()
    return " ".join(words[:2])
