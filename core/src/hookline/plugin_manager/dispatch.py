"""Compile the call of an event. Wrappers go through pluggy's own call, around the compiled implementations."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, Final

import pluggy

from hookline.plugin_manager.background import Background
from hookline.plugin_manager.emitters import Collected, EventClock, compile_dispatch, compile_forward, emitter_globals
from hookline.plugin_manager.events import Event, Failed, Implementation
from hookline.plugin_manager.pluggy_internals import Multicall
from hookline.plugin_manager.timing import PluginTimer

__all__ = ["PLAIN_OPTIONS", "Dispatcher", "guard_wrapper"]


PLAIN_OPTIONS: Final[pluggy.HookimplOpts] = {
    "wrapper": False,
    "hookwrapper": False,
    "optionalhook": False,
    "tryfirst": False,
    "trylast": False,
    "specname": None,
}
"""pluggy's default options of an implementation."""


class Dispatcher:
    """Compiles events for one manager.

    :param multicall: pluggy's function that calls the implementations of a hook.
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

    def function(self, event: Event, called: Sequence[Implementation]) -> Callable[[Mapping[str, Any]], Any]:
        """A function that calls these implementations and returns their results."""
        globals_ = self.globals()
        code = self.compile(event, called, globals_, keep_results=True)
        function = FunctionType(code, globals_)
        function.__kwdefaults__ = dict(event.defaults)
        return lambda arguments: function(None, **arguments)

    def _wrap(
        self, event: Event, wrappers: Sequence[Implementation], inner: Callable[[Mapping[str, Any]], Any]
    ) -> Callable[[Mapping[str, Any]], Any]:
        """Run wrappers by pluggy's own call, around one implementation that calls all the others."""
        guarded = {wrapper: guard_wrapper(wrapper, self._failed, self.timer) for wrapper in reversed(wrappers)}
        scheduled = [wrapper for wrapper in wrappers if wrapper.schedule is not None]
        clock = EventClock(scheduled, {})

        def wrapped(arguments: Mapping[str, Any]) -> Any:
            ready = clock.advance(event.read_clock(arguments)) if scheduled else ()
            results: list[Any] = []

            def all_others() -> Any:
                results.append(inner(arguments))
                return results[0]

            wrapped_call = pluggy.HookImpl(None, "", all_others, PLAIN_OPTIONS)
            due = [hookimpl for wrapper, hookimpl in guarded.items() if wrapper.schedule is None or wrapper in ready]
            result = self.multicall(event.name, [wrapped_call, *due], arguments, True)
            if event.kind == "decide" or not isinstance(result, list):
                return result
            collected = results[0] if results else Collected()
            return result if result is collected else collected.after_wrappers(result, wrappers[-1].plugin)

        return wrapped


def guard_wrapper(implementation: Implementation, failed: Failed, timer: PluginTimer | None) -> pluggy.HookImpl:
    """A wrapper for pluggy to call. If it fails, the event continues without it."""
    hookimpl = implementation.hookimpl
    function = _in_new_style(hookimpl.function) if hookimpl.hookwrapper else hookimpl.function

    def raise_or_ignore(error: BaseException) -> None:
        failures = failed(implementation, error, None)
        if failures:
            raise failures[0]

    def guard(*args: Any, **kwargs: Any) -> Generator[None, Any, Any]:
        start = time.perf_counter_ns()
        wrapper: Any = function(*args, **kwargs)
        try:
            next(wrapper)
        except BaseException as error:
            raise_or_ignore(RuntimeError("the wrapper did not yield") if isinstance(error, StopIteration) else error)
            return (yield)
        taken = time.perf_counter_ns() - start
        inner, inner_error = None, None
        try:
            inner = yield
        except BaseException as error:
            inner_error = error
        start = time.perf_counter_ns() - taken
        streak = implementation.streak
        try:
            return _resume(wrapper, inner, inner_error, raise_or_ignore)
        finally:
            if implementation.streak == streak:
                implementation.streak = 0
            if timer is not None:
                timer.record(implementation, start)

    # pluggy inspects the signature of the wrapped function.
    guard.__wrapped__ = hookimpl.function  # type: ignore[attr-defined]
    options: pluggy.HookimplOpts = {**hookimpl.opts, "wrapper": True, "hookwrapper": False}
    return pluggy.HookImpl(hookimpl.plugin, hookimpl.plugin_name, guard, options)


def _in_new_style(function: Callable[..., Any]) -> Callable[..., Generator[None, Any, Any]]:
    """Adapt a wrapper of pluggy's old style, which is sent a `Result`, to the new style."""

    def wrapper(*args: Any, **kwargs: Any) -> Generator[None, Any, Any]:
        old = function(*args, **kwargs)
        next(old)
        try:
            result = pluggy.Result((yield), None)
        except BaseException as error:
            result = pluggy.Result(None, error)
        try:
            old.send(result)
        except StopIteration:
            return result.get_result()
        old.close()
        yield  # the old one yielded a second time too, which is an error

    return wrapper


def _resume(
    wrapper: Any, inner: Any, error: BaseException | None, raise_or_ignore: Callable[[BaseException], None]
) -> Any:
    """Hand the result of the inner calls, or their error, to a wrapper. Returns the wrapper's result."""
    try:
        _ = wrapper.send(inner) if error is None else wrapper.throw(error)
        wrapper.close()
        raise RuntimeError("the wrapper yielded a second time")
    except StopIteration as stop:
        return stop.value
    except BaseException as own_error:
        if own_error is not error:
            raise_or_ignore(own_error)
        if error is not None:
            raise error from error.__cause__
        return inner
