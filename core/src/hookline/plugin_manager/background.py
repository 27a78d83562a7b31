"""Background implementations: one thread with a bounded queue for each plugin, off the training thread."""

from __future__ import annotations

import atexit
import copy
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hookline.plugin_manager.events import Failed, Implementation
from hookline.plugin_manager.faults import FaultLedger, raise_failures
from hookline.plugin_manager.timing import PluginTimer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

__all__ = ["Background", "freeze"]

logger = logging.getLogger("hookline.plugins")

GATHER_SECONDS: Final = 0.25
"""How long a call may wait for others, to be run with them. Waking a thread takes the GIL from the training thread,
which costs more than most calls."""


def freeze(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of an event's arguments that another thread may keep while the training thread changes the originals."""
    return {name: _freeze(value) for name, value in arguments.items()}


def _freeze(value: Any) -> Any:
    frozen = getattr(value, "frozen", None)
    if callable(frozen):
        return frozen()
    if isinstance(value, (dict, list)):
        return value.copy()
    # A state that is no TrainerState has counters too, which the training thread increments.
    return copy.copy(value) if hasattr(value, "step") and hasattr(value, "epoch") else value


class Call(NamedTuple):
    """A queued call."""

    implementation: Implementation
    arguments: Mapping[str, Any]


class EventLoop:
    """The event loop of one thread. An async plugin may keep a client that is bound to it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if self._runner is None:
            import asyncio  # takes as long as all of this package, and few plugins are async

            self._runner = asyncio.Runner()
        self._runner.run(coroutine)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


class BackgroundWorker:
    """Runs the background calls of one plugin in the order of their events, in small batches.

    When the queue is full, the oldest call is dropped and counted: training never waits for a background plugin.
    """

    def __init__(
        self, plugin: str, capacity: int, run: Callable[[Call, EventLoop], None], drop: Callable[[str], None]
    ) -> None:
        self.plugin = plugin
        self._capacity = capacity
        self._urgent_length = max(1, capacity // 2)
        """Queue length that triggers an immediate run, before calls are dropped."""
        self._run = run
        self._drop = drop
        self._waiting: deque[Call] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._closing = False
        self._drains = 0
        """Threads that wait in `drain`."""
        # A daemon thread: an implementation that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"hookline-{plugin}", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        with self._changed:
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self._drop(self.plugin)
            self._waiting.append(call)
            if len(self._waiting) in (1, self._urgent_length):
                self._changed.notify_all()

    def drain(self, deadline: float) -> bool:
        """Wait until all calls are done or `time.monotonic()` reaches `deadline`. Returns whether they are done."""
        with self._changed:
            self._drains += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._is_idle, max(0.0, deadline - time.monotonic()))
            finally:
                self._drains -= 1

    def close(self) -> int:
        """Drop queued calls and end after the running one. Returns how many calls did not run or did not finish."""
        with self._changed:
            self._closing = True
            left = len(self._waiting) + self._running
            self._waiting.clear()
            self._changed.notify_all()
        return left

    def retire(self) -> None:
        """Finish the queued calls, then end. For a plugin that is unregistered during a run."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._running

    def _work(self) -> None:
        loop = EventLoop()
        try:
            while self._gather():
                while self._run_next(loop):
                    pass
        finally:
            loop.close()

    def _gather(self) -> bool:
        """Wait for a call, and up to GATHER_SECONDS for more. Returns False when the worker ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(self._is_urgent, GATHER_SECONDS)
            return bool(self._waiting)

    def _is_urgent(self) -> bool:
        return self._closing or self._drains > 0 or len(self._waiting) >= self._urgent_length

    def _run_next(self, loop: EventLoop) -> bool:
        with self._changed:
            if not self._waiting:
                return False
            call = self._waiting.popleft()
            self._running = True
        try:
            self._run(call, loop)
        finally:
            with self._changed:
                self._running = False
                if not self._waiting:
                    self._changed.notify_all()
        return True


class Background:
    """All background work of a manager."""

    def __init__(
        self,
        capacity: int,
        drain_seconds: float,
        faults: FaultLedger,
        failed: Failed,
        on_late_failure: Callable[[], None],
    ) -> None:
        self.timer: PluginTimer | None = None
        self._capacity = capacity
        self._drain_seconds = drain_seconds
        self._faults = faults
        self._failed = failed
        self._on_late_failure = on_late_failure
        self._late_failures: list[Exception] = []
        self._workers: dict[str, BackgroundWorker] = {}
        self._lock = threading.Lock()

    def submit(self, implementation: Implementation, arguments: Mapping[str, Any]) -> None:
        """Queue a call of an implementation. Never blocks."""
        plugin = implementation.plugin
        worker = self._workers.get(plugin) or self._start_worker(plugin)
        worker.submit(Call(implementation, arguments))

    def _start_worker(self, plugin: str) -> BackgroundWorker:
        with self._lock:
            if not self._workers:
                # If `close` is never called, queued work still runs before the interpreter exits.
                atexit.register(self.close)
            if plugin not in self._workers:
                self._workers[plugin] = BackgroundWorker(plugin, self._capacity, self._run, self._faults.drop)
            return self._workers[plugin]

    def _run(self, call: Call, loop: EventLoop) -> None:
        implementation = call.implementation
        if implementation.plugin in self._faults.quarantined:
            return
        start = time.perf_counter_ns()
        try:
            _run_call(call, loop)
        except BaseException as error:
            failures = self._failed(implementation, error, None)
            if failures:
                self._late_failures += failures
                self._on_late_failure()
        else:
            implementation.streak = 0
        if self.timer is not None:
            self.timer.record(implementation, start)

    def raise_late_failures(self) -> None:
        """Raise, on the calling thread, the background failures of plugins with the policy `raise`."""
        if self._late_failures:
            failures, self._late_failures = self._late_failures, []
            raise_failures("the background", failures)

    def retire(self, plugin: str) -> None:
        """Let a plugin's queued calls finish, without waiting for them."""
        worker = self._workers.pop(plugin, None)
        if worker is not None:
            worker.retire()

    def drain(self, seconds: float | None = None) -> list[str]:
        """Wait until all calls are done, or the deadline passes. Returns the plugins that are not done."""
        deadline = time.monotonic() + (self._drain_seconds if seconds is None else seconds)
        return [worker.plugin for worker in list(self._workers.values()) if not worker.drain(deadline)]

    def close(self) -> None:
        """Drain, then drop and count the calls that are not done."""
        late = self.drain()
        atexit.unregister(self.close)
        for plugin, worker in list(self._workers.items()):
            left = worker.close()
            if left:
                self._faults.dropped[plugin] += left
        self._workers.clear()
        for plugin in late:
            logger.warning("plugin %r did not finish its background work within %g s", plugin, self._drain_seconds)


def _run_call(call: Call, loop: EventLoop) -> None:
    hookimpl = call.implementation.hookimpl
    names = [*hookimpl.argnames, *(name for name in hookimpl.kwargnames if name in call.arguments)]
    result: Any = hookimpl.function(**{name: call.arguments[name] for name in names})
    if inspect.iscoroutine(result):
        loop.run(result)
