"""`TaskDriver`: has tasks played by a pool. A worker that dies or hangs is replaced, and its task is played again."""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from hookline.rollout.errors import RolloutError
from hookline.rollout.sources.pool import Began, Failed, Finished, Lost, PoolEvent, Ready, WorkerPool

__all__ = ["TaskDriver", "WorkerDeath"]

logger = logging.getLogger("hookline.rollout")

DEATHS_PER_TASK: Final = 3
"""A task is not tried again after this many workers have died while playing it."""

START_SECONDS: Final = 120.0
"""Added to the deadline of a start, since imports may be slow on a busy machine."""


@dataclass(frozen=True)
class WorkerDeath:
    """A worker that died or hung, and was replaced."""

    worker: int
    how: str
    task: int | None
    """The number of the task that it was playing, which is played again. None if it had none."""


@dataclass(eq=False)
class _Turn:
    """What a worker is doing: a task, or its start if there is none."""

    task: Any


class TaskDriver:
    """Submits tasks to a pool, and takes their results in the order of arrival.

    The cost of an event does not depend on the number of workers, but for the logarithm in a heap.

    :param deadline_seconds: a worker that plays one task for longer is replaced. None for no limit.
    :param advice: how to raise the deadline, for the error.
    :param on_lost: called when a worker is lost.
    :param on_restarted: called when another is ready in its place.
    :param clock: the time in seconds. The times of the pool's events are of the same clock.
    """

    def __init__(
        self,
        pool: WorkerPool,
        *,
        deadline_seconds: float | None = None,
        advice: str = "",
        on_lost: Callable[[WorkerDeath], None] = lambda _: None,
        on_restarted: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = pool
        self.in_flight: dict[int, Any] = {}
        """The tasks that are submitted and not yet played, by number."""
        self.ready: deque[Finished] = deque()
        """Results in the order of their arrival."""
        self.deaths: list[WorkerDeath] = []
        """The workers that died or hung, and were replaced."""
        self._deadline = math.inf if deadline_seconds is None else deadline_seconds
        self._advice = advice
        self._on_lost = on_lost
        self._on_restarted = on_restarted
        self._clock = clock
        self._is_running = False
        self._turns: dict[int, _Turn] = {}
        """What each worker is doing. An idle one is not here."""
        self._where: dict[int, str] = {}
        """What each worker plays in, once it has started."""
        self._due: list[tuple[float, int, _Turn]] = []
        """A heap of deadlines. Entries of turns that have ended are left in it, and ignored."""
        self._deaths: Counter[int | str] = Counter()
        """How many workers have died in a task or a start that is not over, by its number or name."""
        self._lost: set[int] = set()
        self._players, self._busy_seconds, self._busy_until = 0, 0.0, 0.0

    def start(self) -> None:
        """Start the workers, unless they run already."""
        if not self._is_running:
            self._is_running = True
            self._busy_until = self._clock()
            for worker in range(self.pool.workers):
                self._begin(worker, None, self._busy_until)
            self.pool.start()

    def submit(self, task: Any) -> None:
        self.in_flight[task.number] = task
        self.pool.submit(task)

    def forget(self) -> None:
        """Forget all tasks. The results of those that are being played are ignored."""
        self.in_flight.clear()
        self.ready.clear()
        self._deaths.clear()
        self.pool.clear()

    def next_result(self) -> Finished:
        """The next result, in the order of arrival. Waits for it. An error of a task is raised."""
        self.handle_events()
        while not self.ready:
            while self._due and self._turns.get(self._due[0][1]) is not self._due[0][2]:
                heapq.heappop(self._due)
            event = self.pool.wait(max(self._due[0][0] - self._clock(), 0.0) if self._due else None)
            if event is not None:
                self._handle(event)
            else:  # all earlier events are handled, so the turn has really not ended
                self._replace(self._due[0][1], f"no answer in {self._deadline:g} s", self._clock(), self._advice)
        return self.ready.popleft()

    def play_first(self, tasks: Sequence[Any]) -> list[Finished]:
        """The results of these tasks, in their order. They are played before all tasks that no worker has begun.

        Other results that arrive stay ready. After an error, these tasks are forgotten.
        """
        for task in reversed(tasks):
            self.in_flight[task.number] = task
            self.pool.submit(task, first=True)
        done: dict[int, Finished] = {}
        others: list[Finished] = []
        numbers = [task.number for task in tasks]
        try:
            while len(done) < len(tasks):
                finished = self.next_result()
                if finished.task.number in numbers:
                    done[finished.task.number] = finished
                else:
                    others.append(finished)
        finally:
            for number in numbers:
                self.in_flight.pop(number, None)
                self._deaths.pop(number, None)
            # After an error, some of these tasks may be ready too.
            self.ready = deque([*others, *(own for own in self.ready if own.task.number not in numbers)])
        return [done[number] for number in numbers]

    def handle_events(self) -> None:
        """Handle what has happened since the last call, without waiting."""
        while (event := self.pool.wait(0.0)) is not None:
            self._handle(event)

    def _handle(self, event: PoolEvent) -> None:
        match event:
            case Ready(worker, at, where):
                self._end(worker, at)
                self._where[worker] = where
                self._deaths.pop(_start_of(worker), None)
                if worker in self._lost:
                    self._lost.remove(worker)
                    self._on_restarted(worker)
            case Began(worker, at, task):
                self._begin(worker, task, at)
            case Finished(worker, at, task):
                self._end(worker, at)
                if self._end_task(task):
                    self.ready.append(event)
            case Failed(worker, at, None, error):
                with suppress(Exception):  # a pool may refuse another start, which is not the cause
                    self._restart(worker, at)
                raise error
            case Failed(worker, at, task, error):
                self._end(worker, at)
                if self._end_task(task):
                    raise error
            case Lost(worker, at, how):
                self._replace(worker, how, at, "see their output on stderr")

    def _end_task(self, task: Any) -> bool:
        """A task is over. Returns whether it was wanted."""
        self._deaths.pop(task.number, None)
        return self.in_flight.pop(task.number, None) is not None

    def _replace(self, worker: int, how: str, at: float, advice: str) -> None:
        """Start another worker in the place of one that is lost, and have its task played again."""
        turn, where = self._turns.get(worker), self._where.get(worker)
        task = None if turn is None else turn.task
        doing = "starting" if where is None else "waiting" if task is None else f"playing {task}"
        logger.warning("rollout worker %d died (%s) while %s: replaced", worker, how, doing)
        self._lost.add(worker)
        self.deaths.append(WorkerDeath(worker, how, None if task is None else task.number))
        self._on_lost(self.deaths[-1])  # before the restart, which a pool may refuse
        self._restart(worker, at)
        if where is None:
            self._count_death(_start_of(worker), "the start of a worker", how, advice)
        elif task is not None and task.number in self.in_flight:
            self._count_death(task.number, ", ".join(filter(None, (where, str(task)))), how, advice)
            self.pool.submit(task, first=True)

    def _count_death(self, cause: int | str, place: str, how: str, advice: str) -> None:
        self._deaths[cause] += 1
        if self._deaths[cause] == DEATHS_PER_TASK:
            raise RolloutError(f"{place}: {DEATHS_PER_TASK} rollout workers died there, the last with {how}; {advice}")

    def _restart(self, worker: int, at: float) -> None:
        self._end(worker, at)
        self._where.pop(worker, None)
        self._begin(worker, None, at)
        self.pool.restart(worker)

    # -- time -----------------------------------------------------------------------------------------------------

    def _begin(self, worker: int, task: Any, at: float) -> None:
        due = at + self._deadline + (START_SECONDS if task is None else 0.0)
        turn = self._turns[worker] = _Turn(task)
        if due < math.inf:
            heapq.heappush(self._due, (due, worker, turn))
        self._count_players(task is not None, at)

    def _end(self, worker: int, at: float) -> None:
        turn = self._turns.pop(worker, None)
        self._count_players(-(turn is not None and turn.task is not None), at)

    def _count_players(self, change: int, at: float) -> None:
        self._busy_seconds += self._players * max(at - self._busy_until, 0.0)
        self._busy_until = max(at, self._busy_until)
        self._players += change

    def busy_seconds(self) -> float:
        """The time that workers have played, as far as events are handled, summed over workers."""
        self._count_players(0, self._clock())
        return self._busy_seconds

    def close(self) -> None:
        """End all workers and forget all tasks. `start` starts new ones."""
        self._is_running = False
        self.pool.close()
        self.forget()
        self._players = 0
        for own in (self._turns, self._where, self._due, self._lost):
            own.clear()


def _start_of(worker: int) -> str:
    return f"the start of worker {worker}"
