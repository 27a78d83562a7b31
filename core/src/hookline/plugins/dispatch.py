"""From implementations to code: plain calls are compiled, wrappers go through pluggy's own call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, Final

import pluggy

from hookline.plugins.background import Background
from hookline.plugins.clocks import EventClock
from hookline.plugins.compiler import compile_dispatch, compile_forward, emitter_globals
from hookline.plugins.events import Event
from hookline.plugins.implementations import Implementation
from hookline.plugins.pluggy_internals import Multicall
from hookline.plugins.results import Collected
from hookline.plugins.timing import PluginTimer
from hookline.plugins.wrappers import Failed, guard_wrapper

__all__ = ["PLAIN_OPTIONS", "Dispatcher"]

PLAIN_OPTIONS: Final[pluggy.HookimplOpts] = {
    "wrapper": False,
    "hookwrapper": False,
    "optionalhook": False,
    "tryfirst": False,
    "trylast": False,
    "specname": None,
}
"""The options of an implementation that has none of its own."""


class Dispatcher:
    """Compiles events for one manager.

    :param multicall: pluggy's own way to call the implementations of a hook.
    """

    def __init__(self, multicall: Multicall, failed: Failed, background: Background) -> None:
        self.multicall = multicall
        self._failed = failed
        self._background = background
        self.timer: PluginTimer | None = None

    def globals(self) -> dict[str, Any]:
        return emitter_globals(self._failed, self._background.submit, self.timer)

    def compile(
        self, event: Event, called: Sequence[Implementation], globals_: dict[str, Any], *, keep_results: bool
    ) -> CodeType:
        """The code that calls these implementations, in this order."""
        globals_["_record"] = self.timer and self.timer.record
        wrappers = [implementation for implementation in called if implementation.is_wrapper]
        if not wrappers:
            return compile_dispatch(event, called, globals_, keep_results=keep_results)
        inner = self.function(event, [implementation for implementation in called if not implementation.is_wrapper])
        return compile_forward(event, self._wrap(event, wrappers, inner), keep_results=keep_results)

    def forward(self, event: Event, target: Callable[[dict[str, Any]], Any]) -> CodeType:
        """The code that leaves an emission to `target`."""
        return compile_forward(event, target, keep_results=False)

    def function(self, event: Event, called: Sequence[Implementation]) -> Callable[[Mapping[str, Any]], Any]:
        """A function that calls these implementations and keeps their results, outside of any emitter."""
        globals_ = self.globals()
        code = self.compile(event, called, globals_, keep_results=True)
        function = FunctionType(code, globals_)
        function.__kwdefaults__ = dict(event.defaults)
        return lambda arguments: function(None, **arguments)

    def _wrap(
        self, event: Event, wrappers: Sequence[Implementation], inner: Callable[[Mapping[str, Any]], Any]
    ) -> Callable[[Mapping[str, Any]], Any]:
        """Run wrappers by pluggy's own call, around one implementation that stands for all the others."""
        guarded = {wrapper: guard_wrapper(wrapper, self._failed, self.timer) for wrapper in reversed(wrappers)}
        scheduled = [wrapper for wrapper in wrappers if wrapper.schedule is not None]
        clock = EventClock(scheduled, {})

        def wrapped(arguments: Mapping[str, Any]) -> Any:
            ready = clock.advance(event.read_clock(arguments)) if scheduled else ()
            results: list[Any] = []

            def all_others() -> Any:
                results.append(inner(arguments))
                return results[0]

            heart = pluggy.HookImpl(None, "", all_others, PLAIN_OPTIONS)
            due = [hookimpl for wrapper, hookimpl in guarded.items() if wrapper.schedule is None or wrapper in ready]
            answer = self.multicall(event.name, [heart, *due], arguments, True)
            if event.kind == "decide" or not isinstance(answer, list):
                return answer
            collected = results[0] if results else Collected()
            return answer if answer is collected else collected.after_wrappers(answer, wrappers[-1].plugin)

        return wrapped
