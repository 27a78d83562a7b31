"""`parsing.Parameter` is cyclopts', for the annotations of a command's arguments.

cyclopts evaluates annotations when it parses arguments, and is imported by then. Importing it takes as long as listing
the plugins does, which has nothing to parse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts import Parameter

__all__ = ["Parameter"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import cyclopts

        return getattr(cyclopts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
