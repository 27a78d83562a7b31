"""`HooklineError`: an error whose message is all that its reader needs."""

from __future__ import annotations

__all__ = ["HooklineError"]


class HooklineError(Exception):
    """The base of errors that say what was wrong, where, and what to do.

    The command line shows their text, and no traceback. A plugin derives its own from it.
    """
