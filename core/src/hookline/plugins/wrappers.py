"""Wrappers around an event: pluggy runs them, a guard keeps one that fails from spoiling the event."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import pluggy

from hookline.plugins.implementations import Implementation
from hookline.plugins.timing import PluginTimer

__all__ = ["guard_wrapper"]

Failed = Callable[[Implementation, BaseException, list[Exception] | None], list[Exception] | None]
"""Records a failure; what it adds to the list is to be raised. It raises what interrupts the run from outside."""


def guard_wrapper(implementation: Implementation, failed: Failed, timer: PluginTimer | None) -> pluggy.HookImpl:
    """The wrapper as pluggy shall call it: when it fails, the event goes on as if it were not there."""
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
        resume: Callable[..., Any] = _resume_with_result
        try:
            inner = yield
        except BaseException as error:
            resume, inner = _resume_with_error, error
        start = time.perf_counter_ns() - taken
        streak = implementation.streak
        try:
            return resume(wrapper, inner, raise_or_ignore)
        finally:
            if implementation.streak == streak:
                implementation.streak = 0
            if timer is not None:
                timer.record(implementation, start)

    # pluggy reads a function's arguments off what it wraps.
    guard.__wrapped__ = hookimpl.function  # type: ignore[attr-defined]
    options: pluggy.HookimplOpts = {**hookimpl.opts, "wrapper": True, "hookwrapper": False}
    return pluggy.HookImpl(hookimpl.plugin, hookimpl.plugin_name, guard, options)


def _in_new_style(function: Callable[..., Any]) -> Callable[..., Generator[None, Any, Any]]:
    """A wrapper of pluggy's old style, which is sent a `Result`, as one that is sent the result itself."""

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
        yield  # the second time, as the old one did

    return wrapper


def _resume_with_result(wrapper: Any, inner: Any, raise_or_ignore: Callable[[BaseException], None]) -> Any:
    try:
        wrapper.send(inner)
        wrapper.close()
        raise RuntimeError("the wrapper yielded a second time")
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        raise_or_ignore(error)
        return inner


def _resume_with_error(wrapper: Any, inner: BaseException, raise_or_ignore: Callable[[BaseException], None]) -> Any:
    try:
        wrapper.throw(inner)
        wrapper.close()
        raise RuntimeError("the wrapper yielded a second time")
    except StopIteration as stop:
        return stop.value
    except BaseException as error:
        if error is not inner:
            raise_or_ignore(error)
        raise inner from inner.__cause__
