"""`HooklineError`, the text of errors without secrets, and of values in messages."""

from __future__ import annotations

from typing import Final

from hookline_hookspecs.redaction import redact_text

__all__ = ["HooklineError", "describe_error", "error_message", "shortened"]

UNSHOWN: Final = "(its message cannot be shown)"

LONGEST: Final = 100
"""Characters of a value in a message."""


class HooklineError(Exception):
    """Base class of errors whose message says what was wrong, where, and what to do.

    The command line prints only the message, without a traceback. Plugins derive their errors from it.
    """


def describe_error(error: BaseException) -> str:
    """An error's type and message, without secrets. Never raises, even if `str(error)` does."""
    name, message = type(error).__name__, error_message(error)
    return f"{name} {message}" if message == UNSHOWN else f"{name}: {message}" if message else name


def error_message(error: BaseException) -> str:
    """An error's message, without secrets. Never raises."""
    try:
        return redact_text(str(error))
    except Exception:
        return UNSHOWN


def shortened(value: object) -> str:
    """The repr of a value on one line, for a message. Never raises, even if `repr(value)` does."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # Python refuses to print an integer of thousands of digits
        text = f"a value of type {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
