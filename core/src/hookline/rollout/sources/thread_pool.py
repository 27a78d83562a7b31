"""`ThreadPool`: a `WorkerPool` with one thread for each worker, in which a `Player` plays."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookline.rollout.sources.pool import (
    Began,
    Failed,
    Finished,
    Lost,
    Player,
    PoolEvent,
    Ready,
    WorkerLostError,
)
from hookline_hookspecs.errors import describe_error

__all__ = ["ThreadPool"]

logger = logging.getLogger("hookline.rollout")

CLOSE_SECONDS: Final = 60.0
"""How long `close` waits for tasks that cannot be ended by force."""


class _Worker:
    def __init__(self, index: int, player: Player) -> None:
        self.index = index
        self.player = player
        self.is_busy = True
        """Whether it starts or plays."""
        self.is_replaced = False
        self.thread: threading.Thread


class ThreadPool:
    """Workers take tasks from one queue, so that none is idle while there are tasks.

    :param make_player: makes the player of a worker, given its index.
    :param pack: turns weights into what `Player.load_weights` takes. Called once for each version.
    """

    def __init__(
        self,
        make_player: Callable[[int], Player],
        workers: int,
        *,
        pack: Callable[[Mapping[str, Any]], Any] = lambda weights: weights,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = workers
        self._make_player = make_player
        self._pack = pack
        self._clock = clock
        self._latest: tuple[int, Any] | None = None
        self._tasks: deque[Any] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._events: queue.SimpleQueue[tuple[_Worker, PoolEvent]] = queue.SimpleQueue()
        self._current: list[_Worker] = []
        self._replaced: list[_Worker] = []

    def start(self) -> None:
        self._is_closing = False
        self._current = [self._start(index) for index in range(self.workers)]

    def _start(self, index: int) -> _Worker:
        worker = _Worker(index, self._make_player(index))
        worker.thread = threading.Thread(target=self._run, args=(worker,), name=f"hookline-worker-{index}", daemon=True)
        worker.thread.start()
        return worker

    def submit(self, task: Any, *, first: bool = False) -> None:
        with self._changed:
            (self._tasks.appendleft if first else self._tasks.append)(task)
            self._changed.notify()

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        self._latest = version, self._pack(weights)

    def wait(self, seconds: float | None) -> PoolEvent | None:
        while True:
            try:
                worker, event = self._events.get(seconds != 0, seconds)
            except queue.Empty:
                return None
            if not worker.is_replaced:
                return event

    def restart(self, worker: int) -> None:
        old = self._current[worker]
        self._end(old)
        self._replaced = [own for own in (*self._replaced, old) if own.thread.is_alive()]
        self._current[worker] = self._start(worker)

    def _end(self, worker: _Worker) -> None:
        with self._changed:
            worker.is_replaced = True
            is_busy = worker.is_busy
            self._changed.notify_all()  # if it waits for a task, it would sleep on, and be notified of one in vain
        if is_busy:
            worker.player.kill()

    def clear(self) -> None:
        with self._changed:
            self._tasks.clear()

    def pids(self) -> list[int]:
        return [pid for worker in self._current if (pid := getattr(worker.player, "pid", None)) is not None]

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._tasks.clear()
            self._changed.notify_all()
        workers, self._current, self._replaced = [*self._current, *self._replaced], [], []
        for worker in workers:
            self._end(worker)
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            worker.thread.join(max(deadline - time.monotonic(), 0.0))
            if worker.thread.is_alive():
                logger.warning("rollout worker %d did not end in %g s, and is left behind", worker.index, CLOSE_SECONDS)
        self._latest = None
        while self.wait(0.0) is not None:
            pass

    # -- in the worker's thread -----------------------------------------------------------------------------------

    def _run(self, worker: _Worker) -> None:
        try:
            where = worker.player.start()
            self._tell(worker, Ready(worker.index, self._clock(), where))
            self._play_tasks(worker)
        except WorkerLostError as error:
            self._tell(worker, Lost(worker.index, self._clock(), str(error)))
        except BaseException as error:  # the start failed, which is for the driver's thread to raise
            self._tell(worker, Failed(worker.index, self._clock(), None, error))
        finally:
            self._close(worker)

    def _close(self, worker: _Worker) -> None:
        try:
            worker.player.close()
        except Exception as error:
            logger.warning("rollout worker %d could not be closed: %s", worker.index, describe_error(error))

    def _play_tasks(self, worker: _Worker) -> None:
        loaded: int | None = None
        while (task := self._take_task(worker)) is not None:
            self._tell(worker, Began(worker.index, self._clock(), task))
            try:
                latest = self._latest
                if latest is not None and latest[0] != loaded:
                    loaded = None  # loading may fail half-way
                    worker.player.load_weights(latest[1], latest[0])
                    loaded = latest[0]
                played = worker.player.play(task)
            except WorkerLostError:
                raise
            except BaseException as error:
                self._tell(worker, Failed(worker.index, self._clock(), task, error))
            else:
                self._tell(worker, Finished(worker.index, self._clock(), task, played))

    def _take_task(self, worker: _Worker) -> Any:
        """The next task, or None when the worker should end."""
        with self._changed:
            worker.is_busy = False
            self._changed.wait_for(lambda: self._tasks or self._is_closing or worker.is_replaced)
            if self._is_closing or worker.is_replaced:
                return None
            worker.is_busy = True
            return self._tasks.popleft()

    def _tell(self, worker: _Worker, event: PoolEvent) -> None:
        self._events.put((worker, event))
