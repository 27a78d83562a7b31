"""`PooledSource`: rollouts of any `WorkerPool`, made while the learner trains. `ahead` and `processes` are such."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from hookline.policies.weights import to_numpy
from hookline.rollout.errors import RolloutError
from hookline.rollout.lesson_player import EvaluationTask, RolloutTask
from hookline.rollout.sources.driver import TaskDriver, WorkerDeath
from hookline.rollout.sources.pool import Finished, WorkerPool
from hookline.rollout.sources.pooled_player import PlayerConfig
from hookline.rollout.sources.process_player import process_pool
from hookline.rollout.sources.source import RolloutSource, SourceRequest
from hookline.rollout.sources.thread_pool import ThreadPool
from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["AheadOptions", "PoolOptions", "PooledSource", "build_ahead", "build_processes"]


@dataclass
class AheadOptions:
    """The options of a source that makes rollouts while the learner trains."""

    prefetch: Annotated[int, Field(ge=0)] | None = None
    """How many rollouts are made ahead of those that the trainer asks for: at most `max_staleness` epochs of them.
    None for one epoch, or one for each worker if these are more. More of them make up for rollouts of very different
    lengths, and are more stale."""


@dataclass
class PoolOptions(AheadOptions):
    """The options of a source whose workers can be replaced."""

    deadline_seconds: Annotated[float, Field(gt=0)] | None = 1800.0
    """A worker that plays one rollout for longer is replaced. None for no limit."""


class PooledSource:
    """Keeps tasks in flight on a pool, and takes their rollouts in the order of arrival.

    All of it is in the trainer's thread, in `next` and `publish`. The pool's workers go on while the learner trains.

    :param make_pool: makes the pool, given what its players are built from. Called at the first `publish`.
    :param clock: the time in seconds. The times of the pool's events are of the same clock.
    """

    def __init__(
        self,
        request: SourceRequest,
        make_pool: Callable[[PlayerConfig], WorkerPool],
        options: AheadOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._worker = request.worker
        self._make_pool = make_pool
        self._options = options
        self._clock = clock
        self._driver: TaskDriver | None = None
        self._next_number = 0
        self._next_evaluation = -1
        self._again: list[RolloutTask] = []
        """Tasks that were in flight when the workers were closed, or when the state was saved."""
        self._player_state: Mapping[str, Any] = {}
        self._version = 0
        self._dropped = 0
        self._last_end: _Moment | None = None
        """The end of the last `next`."""
        self._numbers: dict[str, float] = {}

    # -- rollouts -------------------------------------------------------------------------------------------------

    def next(self, n: int) -> list[Rollout]:
        driver = self._running()
        waited = 0.0
        self._dropped = 0
        rollouts: list[Rollout] = []
        while len(rollouts) < n and not (rollouts and self._worker.is_complete):
            self._worker.announce_start(None)
            rollout: Rollout | None = None
            while rollout is None:
                self._fill(driver, n, n - len(rollouts))
                began = self._clock()
                finished = driver.next_result()
                waited += self._clock() - began
                rollout = self._accept(finished)
            self._worker.announce_end(rollout)
            rollouts.append(rollout)
        self._fill(driver, n, 0)
        self._measure(driver, rollouts, waited)
        return rollouts

    def _fill(self, driver: TaskDriver, n: int, wanted: int) -> None:
        """Have as many tasks in flight or ready as are wanted now, and those of `prefetch`."""
        ahead = max(n, self._request.workers) if self._options.prefetch is None else self._options.prefetch
        target = wanted + min(ahead, n * self._request.max_staleness)
        while (known := len(driver.in_flight) + len(driver.ready)) < target:
            if self._worker.is_complete and known:
                break
            driver.submit(self._again.pop(0) if self._again else self._draw())

    def _draw(self) -> RolloutTask:
        self._next_number += 1
        return self._worker.draw_task(self._next_number - 1)

    def _accept(self, finished: Finished) -> Rollout | None:
        """The rollout of a result. None if it is too stale."""
        played = finished.played
        rollout: Rollout = played.result
        self._player_state = played.state
        by_worker = {f"worker/{finished.worker}/{name}": value for name, value in played.numbers.items()}
        # The same plugins have numbers of their own in the trainer. Only rewards are made nowhere but in workers.
        rewards = {name: value for name, value in played.numbers.items() if name.startswith("rewards/")}
        self._worker.tracker.log({**rewards, **by_worker}, step=self._worker.step)
        if self._version - rollout.weights_version <= self._request.max_staleness:
            return rollout
        self._dropped += 1
        return None

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        copied = to_numpy(weights)  # the learner changes its own in place
        self._version = version
        self._running().pool.publish(copied, version)
        self._worker.announce_weights(copied, version)

    def evaluate(
        self, request: EvaluationRequest, weights: Mapping[str, Any] | None = None
    ) -> dict[str, list[Episode]]:
        """Each lesson is a task. The workers play them at the same time, and before further rollouts."""
        copied = None if weights is None else to_numpy(weights)
        # New numbers each time: after an error, a worker may still play a task of the last evaluation.
        tasks = [
            EvaluationTask(self._next_evaluation - place, replace(request, lessons=(lesson,)), copied)
            for place, lesson in enumerate(request.lessons)
        ]
        self._next_evaluation -= len(tasks)
        episodes: dict[str, list[Episode]] = {}
        for finished in self._running().play_first(tasks):
            episodes |= finished.played.result
        return episodes

    # -- workers --------------------------------------------------------------------------------------------------

    def _running(self) -> TaskDriver:
        if self._driver is None:
            self._driver = TaskDriver(
                self._make_pool(replace(PlayerConfig.of(self._request), state=self._player_state)),
                deadline_seconds=self._options.deadline_seconds if isinstance(self._options, PoolOptions) else None,
                advice="raise rollout.source_options.deadline_seconds, or find where it hangs",
                on_lost=self._announce_lost,
                on_restarted=self._announce_restarted,
                clock=self._clock,
            )
            self._driver.start()
        return self._driver

    def _announce_lost(self, death: WorkerDeath) -> None:
        context = self._worker.context("on_worker_lost")
        self._worker.plugins.emit.on_worker_lost(context=context, worker_index=death.worker, reason=death.how)

    def _announce_restarted(self, worker: int) -> None:
        context = self._worker.context("on_worker_restarted")
        self._worker.plugins.emit.on_worker_restarted(context=context, worker_index=worker)

    def pids(self) -> list[int]:
        return [] if self._driver is None else self._driver.pool.pids()

    def close(self) -> None:
        self._again = self._unplayed()
        driver, self._driver, self._last_end = self._driver, None, None
        if driver is not None:
            driver.close()
        self._worker.stop()

    # -- numbers --------------------------------------------------------------------------------------------------

    def _measure(self, driver: TaskDriver, rollouts: Sequence[Rollout], waited: float) -> None:
        driver.handle_events()
        staleness = [self._version - rollout.weights_version for rollout in rollouts]
        now = _Moment(self._clock(), driver.busy_seconds(), len(driver.deaths))
        before, self._last_end = self._last_end or _Moment(now.time, now.busy_seconds, 0), now
        self._numbers = {
            "source/staleness": sum(staleness) / len(staleness),
            "source/staleness_max": float(max(staleness)),
            "source/dropped_rollouts": float(self._dropped),
            "source/lost_workers": float(now.deaths - before.deaths),
            "source/trainer_idle_seconds": waited,
        }
        if now.time > before.time:
            seconds = now.time - before.time
            busy = (now.busy_seconds - before.busy_seconds) / (seconds * self._request.workers)
            self._numbers["source/trainer_idle_share"] = min(waited / seconds, 1.0)
            self._numbers["source/worker_idle_share"] = max(1.0 - busy, 0.0)

    def numbers(self) -> Mapping[str, float]:
        """Staleness in versions, and how long trainer and workers were idle since the end of the last `next`."""
        return self._numbers

    # -- state ----------------------------------------------------------------------------------------------------

    def _unplayed(self) -> list[RolloutTask]:
        """The tasks whose rollouts were not taken."""
        if self._driver is None:
            return self._again
        own = [*self._again, *self._driver.in_flight.values(), *(finished.task for finished in self._driver.ready)]
        return sorted(own, key=lambda task: task.number)

    def state_dict(self) -> dict[str, Any]:
        """The curriculum, and the tasks that are to be played. The environments of workers start new episodes."""
        return {
            "worker": self._worker.state_dict(),
            "next_number": self._next_number,
            "unplayed": [[task.number, task.lesson_id] for task in self._unplayed()],
            "player": dict(self._player_state),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._worker.load_state_dict(state["worker"])
        self._next_number = state["next_number"]
        self._again = [RolloutTask(number, lesson_id) for number, lesson_id in state["unplayed"]]
        self._player_state = state["player"]


class _Moment(NamedTuple):
    time: float
    busy_seconds: float
    """The time that workers have played, summed over workers."""
    deaths: int


def build_ahead(request: SourceRequest) -> RolloutSource:
    """One worker in a thread of this process."""
    options = request.read_options(AheadOptions)
    if request.workers > 1:
        raise RolloutError(
            f"rollout.workers is {request.workers}, but the source 'ahead' has one thread in each rank: "
            'use rollout.source = "processes"'
        )
    player = request.worker.player
    if player.module is not None and not player.plays_text:
        raise RolloutError(
            "the source 'ahead' would play this policy, a torch module, with torch's global rng while the learner "
            'uses it: use rollout.source = "processes"'
        )
    return PooledSource(request, lambda config: ThreadPool(config, request.workers), options)


def build_processes(request: SourceRequest) -> RolloutSource:
    """Workers in child processes on this machine."""
    options = request.read_options(PoolOptions)
    return PooledSource(request, lambda config: process_pool(config, request.workers), options)
