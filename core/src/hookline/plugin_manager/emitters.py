"""`PluginManager.emit`: one method for each event, and what a collect event returns."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from hookline.plugin_manager.events import Event

__all__ = ["Collected", "Emit", "Emitter"]


class Collected(list[Any]):
    """The results of an event, each with the plugin it came from.

    As a list it holds the results alone, in call order and equal to what pluggy gives. `items()` pairs each with
    its plugin's name.
    """

    __slots__ = ("sources",)

    def __init__(self, values: Iterable[Any] = (), sources: Iterable[str] = ()) -> None:
        super().__init__(values)
        self.sources = list(sources)

    def items(self) -> list[tuple[str, Any]]:
        """The plugin's name and the result, for each result."""
        return list(zip(self.sources, self, strict=True))

    def after_wrappers(self, values: Iterable[Any], wrapper: str) -> Collected:
        """The results as wrappers left them: those still there keep their source, new ones are the wrapper's."""
        sources: defaultdict[int, deque[str]] = defaultdict(deque)
        for source, value in self.items():
            sources[id(value)].append(source)
        kept = list(values)
        return Collected(kept, [sources[id(value)].popleft() if sources[id(value)] else wrapper for value in kept])


class Emit:
    """The events that can be emitted: `emit.on_epoch_end(state=state)`.

    Each manager has a subclass of its own with a method for each event. Methods of a class, unlike functions in an
    instance, are as cheap to call as any method; and a reference to one stays good when plugins come and go.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Not at run time: a class with __getattr__ loses the interpreter's fast path to its methods, and Python's own
        # AttributeError suggests the nearest name.
        def __getattr__(self, event: str) -> Callable[..., Any]: ...


class Emitter:
    """One event's function. It starts out, and after every change goes back to, asking for its code to be built."""

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
        # Python's own complaint about a wrong argument begins with this name.
        function.__qualname__ = f"event {event.signature}: emit"
        function.__doc__ = event.doc
        self.function = function
        self._unbuilt = function.__code__

    def invalidate(self) -> None:
        """Have the code built anew at the next call. A call that is under way goes on with the code it has."""
        self.function.__code__ = self._unbuilt

    def _build_and_call(self, emit: Emit, arguments: dict[str, Any]) -> Any:
        self._event.check_arguments(arguments)
        with self._lock:
            self.function.__code__ = self._build()
        return self.function(emit, **arguments)


def _unbuilt(self: Emit, **arguments: Any) -> Any:
    """The code of an emitter before it is built. It takes any arguments, so that it can say what is wrong with them."""
    return _build_and_call(self, arguments)  # type: ignore[name-defined]  # noqa: F821 - in the emitter's globals
