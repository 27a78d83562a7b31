"""Wrappers around an event: pluggy runs them, a guard keeps one that fails from spoiling the event."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import pluggy

from hookline.plugins.implementations import Implementation
from hookline.plugins.timing import PluginTimer

__all__ = ["guard_wrapper"]

Failed = Callable[[Implementation, Exception, list[Exception] | None], list[Exception] | None]
"""Records a failure; what it adds to the list is to be raised."""


def guard_wrapper(implementation: Implementation, failed: Failed, timer: PluginTimer | None) -> pluggy.HookImpl:
    """The wrapper as pluggy shall call it: when it fails, the event goes on as if it were not there."""
    hookimpl = implementation.hookimpl
    if hookimpl.hookwrapper:
        return hookimpl  # pluggy's old style: it reports what goes wrong in there by itself

    def raise_or_ignore(error: Exception) -> None:
        failures = failed(implementation, error, None)
        if failures:
            raise failures[0]

    def guard(*args: Any, **kwargs: Any) -> Generator[None, Any, Any]:
        start = time.perf_counter_ns()
        wrapper: Any = hookimpl.function(*args, **kwargs)
        try:
            next(wrapper)
        except Exception as error:
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
    return pluggy.HookImpl(hookimpl.plugin, hookimpl.plugin_name, guard, hookimpl.opts)


def _resume_with_result(wrapper: Any, inner: Any, raise_or_ignore: Callable[[Exception], None]) -> Any:
    try:
        wrapper.send(inner)
    except StopIteration as stop:
        return stop.value
    except Exception as error:
        raise_or_ignore(error)
        return inner
    wrapper.close()
    raise_or_ignore(RuntimeError("the wrapper yielded a second time"))
    return inner


def _resume_with_error(wrapper: Any, inner: BaseException, raise_or_ignore: Callable[[Exception], None]) -> Any:
    try:
        wrapper.throw(inner)
    except StopIteration as stop:
        return stop.value
    except Exception as error:
        if error is not inner:
            raise_or_ignore(error)
        raise inner from inner.__cause__
    wrapper.close()
    raise_or_ignore(RuntimeError("the wrapper yielded a second time"))
    raise inner
