"""`PluginManager.emit`: one method for each event. `Collected` is the result of a collect event."""

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
