"""What goes wrong while episodes are rewarded. Every message names the reward or verifier, and the episode."""

from __future__ import annotations

from typing import Final

from hookline.errors import HooklineError

__all__ = ["RewardError", "shown"]

SHOWN_CHARACTERS: Final = 80


class RewardError(HooklineError):
    """A reward or verifier failed, or returned an invalid value."""


def shown(value: object) -> str:
    """A value that was given, for a message. It may be a number of thousands of digits, which Python does not print."""
    try:
        text = repr(value)
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
