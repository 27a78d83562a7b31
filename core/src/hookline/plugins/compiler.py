"""Turns the implementations of an event into one straight-line function.

What a general dispatcher decides at every call (which arguments each implementation takes, what becomes of its
result, whether it has a schedule) is decided once, when plugins change. For two implementations of
`on_epoch_end(state)`, one of them with a schedule, the source is

    def on_epoch_end(self, *, state):
        now = state.epoch
        ready = NOTHING if low <= now < due else <advance>(now)
        failures = None
        call = <first>
        try:
            call(state)
        except Exception as error:
            failures = failed(<first>, error, failures)
        if <second> in ready:
            ...
        if failures:
            raise_failures('on_epoch_end', failures)

and when all have schedules the second line is `if low <= now < due: return`. What stands in angle brackets are
objects placed among the code's constants: a call that is under way keeps the code, and so the implementations, that
it began with, whatever is registered or unregistered meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, Final

from hookline.plugins.background import freeze
from hookline.plugins.clocks import EventClock
from hookline.plugins.events import Event
from hookline.plugins.faults import raise_failures
from hookline.plugins.implementations import Implementation
from hookline.plugins.results import Collected
from hookline.plugins.timing import PluginTimer
from hookline.plugins.wrappers import Failed

__all__ = ["compile_dispatch", "compile_forward", "emitter_globals"]

NOTHING: Final[frozenset[Implementation]] = frozenset()


def emitter_globals(
    failed: Failed, submit: Callable[[Implementation, dict[str, Any]], None], timer: PluginTimer | None
) -> dict[str, Any]:
    """The names that compiled emitters refer to. Each emitter has its own, for its clock's sake."""
    return {
        "NOTHING": NOTHING,
        "Collected": Collected,
        "failed": failed,
        "freeze": freeze,
        "now_ns": time.perf_counter_ns,
        "raise_failures": raise_failures,
        "record": timer and timer.record,
        "submit": submit,
    }


class Constants:
    """Objects that the source refers to by a placeholder string, and the code as a constant."""

    def __init__(self) -> None:
        self._objects: dict[str, object] = {}

    def __call__(self, value: object) -> str:
        placeholder = f"\0{len(self._objects)}"
        self._objects[placeholder] = value
        return repr(placeholder)

    def place_into(self, code: CodeType) -> CodeType:
        return code.replace(
            co_consts=tuple(
                self._objects.get(constant, constant) if isinstance(constant, str) else constant
                for constant in code.co_consts
            )
        )


def compile_dispatch(
    event: Event, implementations: Sequence[Implementation], globals_: dict[str, Any], *, keep_results: bool
) -> CodeType:
    """Code that calls the implementations in this order. Wrappers are not for here."""
    constants = Constants()
    kind = "collect" if event.kind == "notify" and keep_results else event.kind
    scheduled = [i for i in implementations if i.schedule is not None]
    body: list[str] = []
    if scheduled:
        advance = constants(EventClock(scheduled, globals_).advance)
        body += _look_at_clock(event, advance, may_return=kind != "collect" and len(scheduled) == len(implementations))
    if kind == "collect":
        body += ["values = []", "sources = []"]
    if implementations:
        body.append("failures = None")
    if any(i.background for i in implementations):
        body.append("frozen = None")
    timed = globals_["record"] is not None
    for implementation in implementations:
        me = constants(implementation)
        lines = list(_call(implementation, kind, me, constants(implementation.hookimpl.function), timed))
        body += lines if implementation.schedule is None else [f"if {me} in ready:", *_indent(lines)]
    if implementations:
        body += ["if failures:", f"    raise_failures({event.name!r}, failures)"]
    if kind == "collect":
        body.append("return Collected(values, sources)")
    return constants.place_into(_function_code(event, body or ["return None"]))


def compile_forward(event: Event, target: Callable[[dict[str, Any]], Any], *, keep_results: bool) -> CodeType:
    """Code that hands its arguments to `target` as a dictionary."""
    constants = Constants()
    arguments = ", ".join(f"{name!r}: {name}" for name in event.arguments)
    result = "return " if keep_results or event.kind != "notify" else ""
    body = [f"target = {constants(target)}", f"{result}target({{{arguments}}})"]
    return constants.place_into(_function_code(event, body))


def _look_at_clock(event: Event, advance: str, *, may_return: bool) -> Iterator[str]:
    yield f"now = {event.clock_source}"
    if may_return:
        yield "if low <= now < due:"
        yield "    return None"
    yield f"advance = {advance}"
    yield "ready = advance(now)" if may_return else "ready = NOTHING if low <= now < due else advance(now)"


def _call(implementation: Implementation, kind: str, me: str, function: str, timed: bool) -> Iterator[str]:
    if implementation.background:
        arguments = ", ".join(f"{name!r}: {name}" for name in implementation.event.arguments)
        yield "if frozen is None:"
        yield f"    frozen = freeze({{{arguments}}})"
        yield f"submit({me}, frozen)"
        return
    yield f"call = {function}"
    if timed:
        yield "start = now_ns()"
    yield "try:"
    yield f"    {'' if kind == 'notify' else 'result = '}call({implementation.argument_source})"
    yield "except Exception as error:"
    if timed:
        yield f"    record({me}, start)"
    yield f"    failures = failed({me}, error, failures)"
    yield "else:"
    yield f"    {me}.streak = 0" if implementation.has_failed else "    pass"
    if timed:
        yield f"    record({me}, start)"
    if kind == "decide":
        yield "    if result is not None:"
        yield "        if failures:"
        yield f"            raise_failures({implementation.event.name!r}, failures)"
        yield "        return result"
    elif kind == "collect":
        yield "    if result is not None:"
        yield "        values.append(result)"
        yield f"        sources.append({implementation.plugin!r})"


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _function_code(event: Event, body: Sequence[str]) -> CodeType:
    parameters = f"self, *, {', '.join(event.arguments)}" if event.arguments else "self"
    source = "\n".join([f"def {event.name}({parameters}):", *_indent(body)])
    module = compile(source, f"<hookline emitter of {event.name}>", "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))
