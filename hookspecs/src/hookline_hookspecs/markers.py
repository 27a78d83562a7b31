"""`hookspec` declares an event, `hookimpl` an implementation of one.

Both leave their options where pluggy looks for them (`hookline_spec`, `hookline_impl`), with the options
of pluggy and ours in one dictionary. A function marked by `pluggy.HookimplMarker("hookline")` works as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, overload

from hookline_hookspecs.schedules import Schedule, as_schedule

__all__ = ["PROJECT_NAME", "Clock", "Kind", "Scope", "hookimpl", "hookspec"]

PROJECT_NAME: Final = "hookline"

Kind = Literal["notify", "collect", "decide"]
"""What becomes of results: ignored, all kept with the plugin they came from, or the first that is not None."""

Clock = Literal["step", "epoch", "rollout", "none"]
"""What a schedule on this event counts: gradient steps, epochs or rollouts that are complete, or nothing.

At the end of epoch 0 one epoch is complete, so `every=1` on `on_epoch_end` is every epoch, and `every=10` is after the
tenth. An event at the start of an epoch, step or rollout counts those before it: `every=10` on `on_epoch_start` is
before the eleventh. There the clock begins at 0, which no `every` has; `Every(n, start=-1)` does.
"""

Scope = Literal["driver", "every_rank", "worker"]
"""Where implementations run: rank 0 only, every rank of the trainer, or every process that emits the event."""

F = TypeVar("F", bound=Callable[..., Any])


@overload
def hookspec(function: F, /) -> F: ...
@overload
def hookspec(
    *, kind: Kind = ..., clock: Clock = ..., starts: bool = ..., scope: Scope = ..., returns: type = ...
) -> Callable[[F], F]: ...


def hookspec(
    function: F | None = None,
    /,
    *,
    kind: Kind = "notify",
    clock: Clock = "none",
    starts: bool = False,
    scope: Scope = "every_rank",
    returns: type = object,
) -> F | Callable[[F], F]:
    """Declare an event by the signature and docstring of the decorated function.

    :param starts: the event is at the start of an epoch, step or rollout, which its clock does not count yet.
    :param returns: what a result must be, besides None; one that is not is the failure of the plugin it came from.
    """

    def mark(function: F) -> F:
        options = {
            "firstresult": kind == "decide",
            "historic": False,
            "warn_on_impl": None,
            "warn_on_impl_args": None,
            "kind": kind,
            "clock": clock,
            "starts": starts,
            "scope": scope,
            "returns": returns,
        }
        setattr(function, f"{PROJECT_NAME}_spec", options)
        return function

    return mark if function is None else mark(function)


@overload
def hookimpl(function: F, /) -> F: ...
@overload
def hookimpl(
    *,
    every: int | None = ...,
    schedule: Schedule | None = ...,
    background: bool = ...,
    scope: Scope | None = ...,
    tryfirst: bool = ...,
    trylast: bool = ...,
    wrapper: bool = ...,
    optionalhook: bool = ...,
    specname: str | None = ...,
) -> Callable[[F], F]: ...


def hookimpl(
    function: F | None = None,
    /,
    *,
    every: int | None = None,
    schedule: Schedule | None = None,
    background: bool = False,
    scope: Scope | None = None,
    tryfirst: bool = False,
    trylast: bool = False,
    wrapper: bool = False,
    optionalhook: bool = False,
    specname: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a function or method as the implementation of the event it is named after.

    :param every: run once per so many ticks of the event's clock; short for `schedule=Every(every)`.
    :param schedule: run on these ticks only: `Every`, `Cycle`, `At`, combined with `|` and `&`.
    :param background: run off the training thread, within a fraction of a second, with a frozen view of the state. An
        `async def` always does.
    :param scope: run on fewer ranks than the event does; `"driver"` is rank 0 only.
    :param tryfirst: run before the implementations that do not say so.
    :param trylast: run after the implementations that do not say so.
    :param wrapper: a generator that yields once, around all other implementations.
    :param optionalhook: do not fail when no such event exists.
    :param specname: the event's name, when the function has another.
    """
    if every is not None and schedule is not None:
        raise TypeError("hookimpl takes every= or schedule=, not both")
    ticks = every if schedule is None else schedule
    parsed = None if ticks is None else as_schedule(ticks)

    def mark(function: F) -> F:
        options = {
            "tryfirst": tryfirst,
            "trylast": trylast,
            "wrapper": wrapper,
            "hookwrapper": False,
            "optionalhook": optionalhook,
            "specname": specname,
            "schedule": parsed,
            "background": background or inspect.iscoroutinefunction(function),
            "scope": scope,
        }
        setattr(function, f"{PROJECT_NAME}_impl", options)
        return function

    return mark if function is None else mark(function)
