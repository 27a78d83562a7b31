"""`HooklineError`, and the text of errors without secrets."""

from __future__ import annotations

from typing import Final

from hookline_hookspecs.redaction import redact_text

__all__ = ["HooklineError", "describe_error", "error_message"]

UNSHOWN: Final = "(its message cannot be shown)"


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
