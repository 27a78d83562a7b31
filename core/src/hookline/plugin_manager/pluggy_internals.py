"""The private attributes of pluggy that the plugin manager relies on. No other module uses one.

`core/tests/test_pluggy_internals.py` fails if a version of pluggy removes them or changes their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pluggy

__all__ = ["Multicall", "is_executor", "replace_executor", "set_hookimpls"]

Multicall = Callable[[str, Sequence[pluggy.HookImpl], Mapping[str, object], bool], Any]
"""Calls the implementations of a hook: its name, the implementations, the arguments, whether the first result wins."""


def replace_executor(manager: pluggy.PluginManager, execute: Multicall) -> Multicall:
    """Make `execute` handle every call of `manager.hook.<event>(...)`. Returns the previous handler."""
    before = manager._inner_hookexec
    manager._inner_hookexec = execute  # type: ignore[assignment]  # pluggy's has names for its parameters
    return before


def is_executor(manager: pluggy.PluginManager, execute: Multicall) -> bool:
    """Whether `execute` handles the calls of hooks directly. pluggy's monitoring wraps it."""
    return manager._inner_hookexec == execute


def set_hookimpls(caller: pluggy.HookCaller, hookimpls: Sequence[pluggy.HookImpl]) -> None:
    """Set the order of a hook's implementations. The last is called first; wrappers are at the end."""
    caller._hookimpls[:] = hookimpls
