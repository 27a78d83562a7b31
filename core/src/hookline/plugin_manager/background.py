"""Implementations that run off the training thread: one thread and one bounded queue for each plugin."""

from __future__ import annotations

import asyncio
import atexit
import copy
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hookline.plugin_manager.faults import FaultLedger, raise_failures
from hookline.plugin_manager.implementations import Failed, Implementation
from hookline.plugin_manager.timing import PluginTimer

__all__ = ["Background", "freeze"]

logger = logging.getLogger("hookline.plugins")

GATHER_SECONDS: Final = 0.25
"""How long calls may wait for others. A thread that wakes up takes the interpreter's lock away from training, and that
costs more than most calls do: better once for several."""


def freeze(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an event as another thread may keep them, while the training thread changes its own."""
    return {name: _freeze(value) for name, value in arguments.items()}


def _freeze(value: Any) -> Any:
    frozen = getattr(value, "frozen", None)
    if callable(frozen):
        return frozen()
    if isinstance(value, (dict, list)):
        return value.copy()
    # A state of another class has counters too, and they too will have moved on.
    return copy.copy(value) if hasattr(value, "step") and hasattr(value, "epoch") else value


class Call(NamedTuple):
    """A call that waits for its turn."""

    implementation: Implementation
    arguments: Mapping[str, Any]


class BackgroundWorker:
    """Runs one plugin's background implementations in the order of their events, those of a short while in one go.

    When the queue is full the oldest call is dropped and counted: training never waits for an observer.
    """

    def __init__(
        self, plugin: str, capacity: int, run: Callable[[Call, asyncio.Runner], None], drop: Callable[[str], None]
    ) -> None:
        self.plugin = plugin
        self._capacity = capacity
        self._many = max(1, capacity // 2)
        """Calls that wait for no others, lest some be dropped."""
        self._run = run
        self._drop = drop
        self._waiting: deque[Call] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._closing = False
        self._hurries = 0
        """How many wait for the calls to be done."""
        # A daemon, so that an implementation that hangs cannot keep the process alive past the deadline.
        self._thread = threading.Thread(target=self._work, name=f"hookline-{plugin}", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        with self._changed:
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self._drop(self.plugin)
            self._waiting.append(call)
            if len(self._waiting) in (1, self._many):
                self._changed.notify_all()

    def drain(self, deadline: float) -> bool:
        """Wait until all calls are done, or until `time.monotonic()` reaches `deadline`; say whether they are."""
        with self._changed:
            self._hurries += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._is_idle, max(0.0, deadline - time.monotonic()))
            finally:
                self._hurries -= 1

    def close(self) -> int:
        """Take no more calls and end once the running one returns; return how many never ran or never ended."""
        with self._changed:
            self._closing = True
            left = len(self._waiting) + self._running
            self._waiting.clear()
            self._changed.notify_all()
        return left

    def retire(self) -> None:
        """Finish the calls that wait, then end. For a plugin that was unregistered in the middle of a run."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return not self._waiting and not self._running

    def _work(self) -> None:
        # One event loop for the thread's life: an async plugin may keep a client that is bound to it.
        runner = asyncio.Runner()
        try:
            while self._gather():
                while self._run_next(runner):
                    pass
        finally:
            runner.close()

    def _gather(self) -> bool:
        """Wait for calls, and a little longer for more of them; says whether there are any, or the end has come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(self._is_urgent, GATHER_SECONDS)
            return bool(self._waiting)

    def _is_urgent(self) -> bool:
        return self._closing or self._hurries > 0 or len(self._waiting) >= self._many

    def _run_next(self, runner: asyncio.Runner) -> bool:
        with self._changed:
            if not self._waiting:
                return False
            call = self._waiting.popleft()
            self._running = True
        try:
            self._run(call, runner)
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
        """Have an implementation called soon. Never waits."""
        plugin = implementation.plugin
        worker = self._workers.get(plugin) or self._start_worker(plugin)
        worker.submit(Call(implementation, arguments))

    def _start_worker(self, plugin: str) -> BackgroundWorker:
        with self._lock:
            if not self._workers:
                # Without a call of `close` the work is still done before the interpreter ends.
                atexit.register(self.close)
            if plugin not in self._workers:
                self._workers[plugin] = BackgroundWorker(plugin, self._capacity, self._run, self._faults.drop)
            return self._workers[plugin]

    def _run(self, call: Call, runner: asyncio.Runner) -> None:
        implementation = call.implementation
        if implementation.plugin in self._faults.quarantined:
            return
        start = time.perf_counter_ns()
        try:
            _run_to_its_end(call, runner)
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
        """Raise, on the thread that calls this, what has failed in the background and is to be raised."""
        if self._late_failures:
            failures, self._late_failures = self._late_failures, []
            raise_failures("the background", failures)

    def retire(self, plugin: str) -> None:
        """Let a plugin's calls finish without waiting for them, and take no more."""
        worker = self._workers.pop(plugin, None)
        if worker is not None:
            worker.retire()

    def drain(self, seconds: float | None = None) -> list[str]:
        """Wait until all calls are done, at most so long; return the plugins that were not done."""
        deadline = time.monotonic() + (self._drain_seconds if seconds is None else seconds)
        return [worker.plugin for worker in list(self._workers.values()) if not worker.drain(deadline)]

    def close(self) -> None:
        """Drain, and give up what is not done by then; it is counted as dropped."""
        late = self.drain()
        atexit.unregister(self.close)
        for plugin, worker in list(self._workers.items()):
            left = worker.close()
            if left:
                self._faults.dropped[plugin] += left
        self._workers.clear()
        for plugin in late:
            logger.warning("plugin %r was not done with its background work after %g s", plugin, self._drain_seconds)


def _run_to_its_end(call: Call, runner: asyncio.Runner) -> None:
    hookimpl = call.implementation.hookimpl
    names = [*hookimpl.argnames, *(name for name in hookimpl.kwargnames if name in call.arguments)]
    result: Any = hookimpl.function(**{name: call.arguments[name] for name in names})
    if inspect.iscoroutine(result):
        runner.run(result)
