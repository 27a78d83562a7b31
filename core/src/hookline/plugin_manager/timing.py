"""Time spent in each plugin and event: totals, and a trace file for chrome://tracing or Perfetto."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hookline.plugin_manager.events import Implementation

__all__ = ["PluginTimer", "Timing"]

MOST_TRACE_EVENTS: Final = 200_000
"""Calls in a trace file, about 30 MB. Later calls are counted only."""


@dataclass(slots=True)
class Timing:
    """The time of one plugin's implementation of one event."""

    plugin: str
    event: str
    calls: int = 0
    total_ns: int = 0
    longest_ns: int = 0
    background: bool = False
    """The time was spent off the training thread."""


class PluginTimer:
    """Sums the time of every call, and keeps the calls for a trace."""

    def __init__(self) -> None:
        self.timings: dict[tuple[str, str], Timing] = {}
        self.untraced = 0
        self._calls: list[tuple[str, str, int, int, int]] = []
        self._began = time.perf_counter_ns()
        self._lock = threading.Lock()

    def record(self, implementation: Implementation, start_ns: int) -> None:
        """Record a call that began at `start_ns` and ends now."""
        taken = time.perf_counter_ns() - start_ns
        plugin, event = implementation.plugin, implementation.event.name
        with self._lock:
            timing = self.timings.get((plugin, event))
            if timing is None:
                timing = Timing(plugin, event, background=implementation.background)
                self.timings[plugin, event] = timing
            timing.calls += 1
            timing.total_ns += taken
            timing.longest_ns = max(timing.longest_ns, taken)
            if len(self._calls) < MOST_TRACE_EVENTS:
                self._calls.append((plugin, event, start_ns, taken, threading.get_ident()))
            else:
                self.untraced += 1

    def write_chrome_trace(self, path: Path) -> None:
        """Write the calls in the trace event format, one row for each thread."""
        process = os.getpid()
        threads: dict[int, int] = {}
        events: list[Mapping[str, Any]] = []
        for plugin, event, start_ns, taken, thread in self._calls:
            events.append(
                {
                    "name": f"{plugin}.{event}",
                    "cat": event,
                    "ph": "X",
                    "ts": (start_ns - self._began) / 1000,
                    "dur": taken / 1000,
                    "pid": process,
                    "tid": threads.setdefault(thread, len(threads)),
                    "args": {"plugin": plugin},
                }
            )
        trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"calls_not_kept": self.untraced}}
        path.write_text(json.dumps(trace), encoding="utf-8")
