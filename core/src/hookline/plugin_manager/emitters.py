"""`PluginManager.emit`: one method for each event, compiled from its implementations.

An `Emitter` builds its code at the first call after plugins have changed: `compile_dispatch` writes and compiles the
source that calls the implementations, and `EventClock` says which of them are due.
"""

from __future__ import annotations

import itertools
import linecache
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from hookline.plugin_manager.background import freeze
from hookline.plugin_manager.events import Event, Failed, Implementation
from hookline.plugin_manager.faults import raise_failures
from hookline.plugin_manager.timing import PluginTimer
from hookline_hookspecs.schedules import NEVER

__all__ = ["Collected", "Emit", "Emitter", "EventClock", "compile_dispatch", "compile_forward", "emitter_globals"]


class Collected(list[Any]):
    """The results of an event, each with the plugin it came from.

    As a list it holds the results in call order, as pluggy returns them. `items()` pairs each with its plugin's
    name.
    """

    __slots__ = ("sources",)

    def __init__(self, values: Iterable[Any] = (), sources: Iterable[str] = ()) -> None:
        super().__init__(values)
        self.sources = list(sources)

    def items(self) -> list[tuple[str, Any]]:
        """Pairs of a plugin's name and its result."""
        return list(zip(self.sources, self, strict=True))

    def after_wrappers(self, values: Iterable[Any], wrapper: str) -> Collected:
        """The results that wrappers returned. Unchanged ones keep their source; new ones belong to the wrapper."""
        sources: defaultdict[int, deque[str]] = defaultdict(deque)
        for source, value in self.items():
            sources[id(value)].append(source)
        kept = list(values)
        return Collected(kept, [sources[id(value)].popleft() if sources[id(value)] else wrapper for value in kept])


class Emit:
    """The events that can be emitted: `emit.on_epoch_end(state=state)`.

    Each manager makes a subclass with a method for each event. Methods of a class are faster to call than functions
    stored in an instance, and a reference to one stays valid when plugins are registered or removed.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Not at run time: a class with __getattr__ loses the interpreter's fast path to its methods, and Python's own
        # AttributeError suggests the nearest name.
        def __getattr__(self, event: str) -> Callable[..., Any]: ...


class Emitter:
    """The function of one event. Its code is built at the first call, and again after plugins have changed."""

    __slots__ = ("_build", "_event", "_lock", "_unbuilt", "function")

    def __init__(
        self, event: Event, globals_: dict[str, Any], build: Callable[[], CodeType], lock: threading.RLock
    ) -> None:
        self._event = event
        self._build = build
        self._lock = lock
        globals_["_build_and_call"] = self._build_and_call
        function = FunctionType(_unbuilt.__code__, globals_, event.name)
        function.__kwdefaults__ = dict(event.defaults) or None
        # Python's TypeError for a wrong argument begins with this name.
        function.__qualname__ = f"event {event.signature}: emit"
        function.__doc__ = event.doc
        self.function = function
        self._unbuilt = function.__code__

    def invalidate(self) -> None:
        """Rebuild the code at the next call. A running call continues with its old code."""
        self.function.__code__ = self._unbuilt

    def _build_and_call(self, emit: Emit, arguments: dict[str, Any]) -> Any:
        self._event.check_arguments(arguments)
        with self._lock:
            self.function.__code__ = self._build()
        return self.function(emit, **arguments)


def _unbuilt(self: Emit, **arguments: Any) -> Any:
    """The code of an emitter before it is built. It takes any arguments, to report wrong ones."""
    return _build_and_call(self, arguments)  # type: ignore[name-defined]  # noqa: F821 - in the emitter's globals


class EventClock:
    """The schedules of one event's implementations.

    It keeps `_low` and `_due` in the emitter's globals. While `_low <= now < _due` nothing is due, and the emitter
    returns without calling this object. A clock that went back (a run resumed in this process) is below `_low`.
    """

    __slots__ = ("_emitter_globals", "_scheduled")

    def __init__(self, scheduled: Sequence[Implementation], emitter_globals: dict[str, Any]) -> None:
        self._scheduled = scheduled
        self._emitter_globals = emitter_globals
        self._set_window()

    def advance(self, now: int) -> frozenset[Implementation]:
        """Advance all schedules to `now`, and return the implementations that are due."""
        ready = frozenset([own for own in self._scheduled if own.watch.is_due(now)])
        self._set_window()
        return ready

    def _set_window(self) -> None:
        self._emitter_globals["_low"] = max((own.watch.seen for own in self._scheduled), default=-1)
        self._emitter_globals["_due"] = min((own.watch.next_due for own in self._scheduled), default=NEVER)


NOTHING: Final[frozenset[Implementation]] = frozenset()


def emitter_globals(
    failed: Failed, submit: Callable[[Implementation, dict[str, Any]], None], timer: PluginTimer | None
) -> dict[str, Any]:
    """The global names of a compiled emitter. Each emitter has its own, because its clock is among them."""
    return {
        "_NOTHING": NOTHING,
        "_Collected": Collected,
        "_failed": failed,
        "_freeze": freeze,
        "_now_ns": time.perf_counter_ns,
        "_raise_failures": raise_failures,
        "_record": timer and timer.record,
        "_submit": submit,
    }


class Constants:
    """Objects that are placeholder strings in the source, and constants of the code compiled from it."""

    def __init__(self) -> None:
        self._objects: dict[str, object] = {}

    def __call__(self, value: object, label: str) -> str:
        """The placeholder of a value, as source. The label is what a traceback shows."""
        placeholder = f"<{label}, {len(self._objects)}>"
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
    """Code that calls the implementations in this order. There must be no wrappers among them."""
    constants = Constants()
    kind = "collect" if event.kind == "notify" and keep_results else event.kind
    scheduled = [i for i in implementations if i.schedule is not None]
    body: list[str] = []
    if scheduled:
        advance = constants(EventClock(scheduled, globals_).advance, "the clock")
        body += _look_at_clock(event, advance, may_return=kind != "collect" and len(scheduled) == len(implementations))
    if kind == "collect":
        body += ["_values = []", "_sources = []"]
    if implementations:
        body.append("_failures = None")
    background = [i for i in implementations if i.background]
    if background:
        body.append("_frozen = None")
    timed = globals_["_record"] is not None
    for place, implementation in enumerate(implementations):
        plugin = implementation.plugin
        me = constants(implementation, f"the implementation of {plugin}")
        function = constants(implementation.hookimpl.function, f"the function of {plugin}")
        lines = list(_call(implementation, kind, me, function, constants(plugin, "the name"), timed))
        if not implementation.background and any(i in background for i in implementations[place:]):
            lines.append("_frozen = None")  # it may have changed the state: freeze it again
        body += lines if implementation.schedule is None else [f"if {me} in _ready:", *_indent(lines)]
    if implementations:
        body += ["if _failures:", f"    _raise_failures({event.name!r}, _failures)"]
    if kind == "collect":
        body.append("return _Collected(_values, _sources)")
    return _function_code(event, body or ["return None"], constants)


def compile_forward(event: Event, target: Callable[[dict[str, Any]], Any], *, keep_results: bool) -> CodeType:
    """Code that hands its arguments to `target` as a dictionary."""
    constants = Constants()
    arguments = ", ".join(f"{name!r}: {name}" for name in event.arguments)
    result = "return " if keep_results or event.kind != "notify" else ""
    body = [f"_target = {constants(target, 'the target')}", f"{result}_target({{{arguments}}})"]
    return _function_code(event, body, constants)


def _look_at_clock(event: Event, advance: str, *, may_return: bool) -> Iterator[str]:
    yield f"_now = {event.clock_source}"
    if may_return:
        yield "if _low <= _now < _due:"
        yield "    return None"
    yield f"_advance = {advance}"
    yield "_ready = _advance(_now)" if may_return else "_ready = _NOTHING if _low <= _now < _due else _advance(_now)"


def _call(implementation: Implementation, kind: str, me: str, function: str, plugin: str, timed: bool) -> Iterator[str]:
    if implementation.background:
        arguments = ", ".join(f"{name!r}: {name}" for name in implementation.event.arguments)
        yield "if _frozen is None:"
        yield f"    _frozen = _freeze({{{arguments}}})"
        yield f"_submit({me}, _frozen)"
        return
    yield f"_call = {function}"
    if timed:
        yield "_start = _now_ns()"
    yield "try:"
    yield f"    {'' if kind == 'notify' else '_result = '}_call({implementation.argument_source})"
    if implementation.event.returns is not object and kind != "notify":
        yield f"    {me}.event.check_result(_result)"
    yield "except BaseException as _error:"
    if timed:
        yield f"    _record({me}, _start)"
    yield f"    _failures = _failed({me}, _error, _failures)"
    yield "else:"
    yield f"    {me}.streak = 0" if implementation.has_failed else "    pass"
    if timed:
        yield f"    _record({me}, _start)"
    if kind == "decide":
        yield "    if _result is not None:"
        yield "        if _failures:"
        yield f"            _raise_failures({implementation.event.name!r}, _failures)"
        yield "        return _result"
    elif kind == "collect":
        yield "    if _result is not None:"
        yield "        _values.append(_result)"
        yield f"        _sources.append({plugin})"


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


_numbers = itertools.count(1)


def _function_code(event: Event, body: Sequence[str], constants: Constants) -> CodeType:
    parameters = f"self, *, {', '.join(event.arguments)}" if event.arguments else "self"
    source = "\n".join([f"def {event.name}({parameters}):", *_indent(body)])
    file = f"<hookline emitter of {event.name}, {next(_numbers)}>"
    module = compile(source, file, "exec")
    code = constants.place_into(next(own for own in module.co_consts if isinstance(own, CodeType)))
    # Tracebacks and debuggers read source from linecache. The entry is removed together with the code.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    weakref.finalize(code, linecache.cache.pop, file, None).atexit = False
    return code
