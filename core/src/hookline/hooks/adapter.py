"""What all older styles of hook share: each hook is registered as a plugin of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from hookline_hookspecs import PROJECT_NAME, Scope, hookimpl

__all__ = ["HookAdapter", "mark_of"]

PLUGIN_ATTRIBUTES: Final = ("critical", "on_error", "after", "before", "requires")

MARK: Final = f"{PROJECT_NAME}_impl"


class HookAdapter:
    """A plugin that stands for a hook, and says of itself what the hook says: `critical`, `after` and the like."""

    newest_last: ClassVar = True
    requires: tuple[str, ...]

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        for name in PLUGIN_ATTRIBUTES:
            if hasattr(hook, name):
                setattr(self, name, getattr(hook, name))

    def implement(
        self, event: str, function: Callable[..., Any], method: Callable[..., Any], scope: Scope | None = None
    ) -> None:
        """Make a function the implementation of an event.

        :param method: the hook's own method, which the function calls. Its mark, if it has one, is the function's too.
        :param scope: where it is called, if the method has no mark.
        """
        usual = hookimpl(scope=scope, background=inspect.iscoroutinefunction(method))(function)
        setattr(function, MARK, {**(mark_of(method) or mark_of(usual) or {}), "specname": event})
        # Under the method's name: a hook may have several methods for one event.
        setattr(self, getattr(method, "__name__", event), function)


def mark_of(method: Any) -> Mapping[str, Any] | None:
    """The options that `@hookimpl` has left on a method, or None."""
    mark: Mapping[str, Any] | None = getattr(method, MARK, None)
    return mark
