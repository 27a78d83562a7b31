"""`HooklineError`, whose message is all that its reader needs, and errors as text that may leave the process."""

from __future__ import annotations

from typing import Final

from hookline_hookspecs.redaction import redact_text

__all__ = ["HooklineError", "describe_error", "error_message"]

UNSHOWN: Final = "(its message cannot be shown)"


class HooklineError(Exception):
    """The base of errors that say what was wrong, where, and what to do.

    The command line shows their text, and no traceback. A plugin derives its own from it.
    """


def describe_error(error: BaseException) -> str:
    """An error's type and what it says, without secrets. Never raises, whatever the error's own methods do."""
    name, message = type(error).__name__, error_message(error)
    return f"{name} {message}" if message == UNSHOWN else f"{name}: {message}" if message else name


def error_message(error: BaseException) -> str:
    """What an error says, without secrets. Never raises."""
    try:
        return redact_text(str(error))
    except Exception:
        return UNSHOWN
