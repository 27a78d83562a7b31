"""Threads that wait for tasks, when the worker of one is replaced."""

from __future__ import annotations

import threading
import time
from typing import Any

from hookline.rollout.sources import Finished, Played, Ready, ThreadPool

SECONDS = 60


class Quick:
    """Plays at once."""

    def start(self) -> str:
        return ""

    def load_weights(self, weights: Any, version: int) -> None: ...

    def play(self, task: Any) -> Played:
        return Played(f"result of {task}")

    def kill(self) -> None: ...

    def close(self) -> None: ...


def test_a_worker_that_waits_for_a_task_ends_when_it_is_replaced() -> None:
    pool = ThreadPool(lambda _: Quick(), 1)
    pool.start()
    try:
        assert isinstance(pool.wait(SECONDS), Ready)
        (thread,) = (own for own in threading.enumerate() if own.name == "hookline-worker-0")
        time.sleep(0.2)  # until it waits
        pool.restart(0)
        thread.join(SECONDS)
        assert not thread.is_alive(), "the next task would be announced to it alone"
        pool.submit("a task")
        events = [pool.wait(SECONDS) for _ in range(3)]
        assert isinstance(events[-1], Finished)
        assert events[-1].played.result == "result of a task"
    finally:
        pool.close()
