"""Durations and times as text."""

from __future__ import annotations

import time

__all__ = ["format_age", "format_duration", "format_time"]


def format_duration(seconds: float) -> str:
    """Such as `12 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    units = [("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60)]
    first = next((place for place, (_, count) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for unit, count in units[first : first + 2] if count) or "0 s"


def format_age(seconds: float) -> str:
    """The duration in its largest unit only, such as `3 min`."""
    words = format_duration(seconds).split()
    return " ".join(words[:2])


def format_time(seconds: float) -> str:
    """Seconds since 1970 as a local time, such as `2026-11-18 04:30`. Empty if there is no such time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OSError, OverflowError, ValueError):
        return ""
