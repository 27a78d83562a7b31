"""The state belongs to the loop: a plugin that puts something of another type into it is found out at once."""

from __future__ import annotations

from typing import Any, Final

from hookline.plugins.errors import HooklineError
from hookline.plugins.manager import PluginManager

__all__ = ["StateCheck", "StateTypeError"]

CHECKED: Final = ("epoch", "step", "agent_step", "loss_stats", "rollout_stats", "eval_scores", "shared")
"""What the loop counts with, and what plugins read of it."""


class StateTypeError(HooklineError, TypeError):
    """A plugin has changed the type of the state, or of something in it."""


class StateCheck:
    """Remembers the types that a state began with."""

    def __init__(self, plugins: PluginManager, state: Any) -> None:
        self._plugins = plugins
        self._state = state
        self._own_type = type(state)
        self._types = [(name, type(getattr(state, name))) for name in CHECKED if hasattr(state, name)]

    def after(self, event: str) -> None:
        """Raise when a type has changed since the session began; `event` is the one that was just emitted."""
        state = self._state
        if type(state) is not self._own_type:
            raise StateTypeError(
                f"in {event} a plugin made the state a {type(state).__name__}; it must stay a "
                f"{self._own_type.__name__}. {self._suspects(event)}"
            )
        reason = getattr(state, "stop_reason", None)
        if reason is not None and not isinstance(reason, str):
            raise StateTypeError(
                f"in {event} a plugin set state.stop_reason to {reason!r}, a {type(reason).__name__}; "
                f"it must be a str, or None. {self._suspects(event)}"
            )
        for name, expected in self._types:
            if type(getattr(state, name)) is not expected:
                value = getattr(state, name)
                raise StateTypeError(
                    f"in {event} a plugin set state.{name} to {value!r}, a {type(value).__name__}; it must stay a "
                    f"{expected.__name__}. {self._suspects(event)}"
                )

    def _suspects(self, event: str) -> str:
        names = [repr(hookimpl.plugin_name) for hookimpl in getattr(self._plugins.hook, event).get_hookimpls()]
        return f"Called were: {', '.join(reversed(names))}. A plugin writes to state.shared, under its own name."
