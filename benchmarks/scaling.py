"""What the driver of rollouts does with 1 to 1000 workers: its own code, with workers and a clock that are simulated.

    python benchmarks/scaling.py [--json FILE] [--workers 1 10 100 1000] [--epochs 30]

Simulated are calls, weights on their way to a node, rollouts with a long tail, deaths, and the learner. `PooledSource`
and `TaskDriver` run as they are, and so do the announcements, the curriculum and the unpickling of results. The CPU
time that these take passes on the simulated clock, too. Each worker has four rollouts in an epoch, and needs as long
for them as the learner for its update, on the average. It takes two minutes.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import itertools
import logging
import pickle
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring import Table, describe_machine, report

from hookline.policies import Discrete, MLPPolicy
from hookline.rollout import CurriculumConfig, RolloutWorker, RolloutWorkerConfig
from hookline.rollout.sources import (
    Began,
    Finished,
    Lost,
    Played,
    PooledSource,
    PoolEvent,
    PoolOptions,
    Ready,
    SourceRequest,
)

CALL_SECONDS: Final = 0.0005
WEIGHTS_SECONDS: Final = 40e6 * 8 / 10e9
"""40 MB to a node, by a network of 10 Gbit/s."""
WORKERS_PER_NODE: Final = 8
ROLLOUT_MEDIAN, ROLLOUT_SIGMA = 2.0, 0.8
"""Seconds of a rollout, log-normal: the mean is 2.75, one in a hundred takes more than 12."""
START_SECONDS: Final = 10.0
DEATHS_PER_HOUR: Final = 0.2
"""Of each worker: at a thousand workers, one every 18 seconds."""
ROLLOUTS_PER_WORKER: Final = 4
TRAIN_SECONDS: Final = ROLLOUTS_PER_WORKER * ROLLOUT_MEDIAN * float(np.exp(ROLLOUT_SIGMA**2 / 2))
MAX_STALENESS: Final = 2


class SimulatedPool:
    """Workers that sleep on a simulated clock. The CPU time of all code outside of it passes on that clock, too."""

    def __init__(self, workers: int, result: bytes) -> None:
        self.workers = workers
        self.now = 0.0
        self.driver_seconds = 0.0
        """The CPU time that has passed on the clock."""
        self._result = result
        self._rng = np.random.default_rng(workers)
        self._cpu = time.thread_time()
        self._tasks: deque[Any] = deque()
        self._idle: deque[int] = deque()
        self._generation = [0] * workers
        """Counts the restarts of each worker. Events of earlier ones are dropped."""
        self._published: list[tuple[float, int]] = []
        """When each version was published."""
        self._node_version = [-1] * (workers // WORKERS_PER_NODE + 1)
        self._events: list[tuple[float, int, int, PoolEvent]] = []
        """A heap of what will happen: when, a number, and the worker's generation."""
        self._numbers = itertools.count()

    def clock(self) -> float:
        cpu = time.thread_time()
        spent, self._cpu = cpu - self._cpu, cpu
        self.now += spent
        self.driver_seconds += spent
        return self.now

    def train(self, seconds: float) -> None:
        """The learner trains, and the driver does nothing."""
        self.clock()
        self.now += seconds

    def _tell(self, event: PoolEvent) -> None:
        generation = self._generation[event.worker]
        heapq.heappush(self._events, (event.at, next(self._numbers), generation, event))

    def start(self) -> None:
        for worker in range(self.workers):
            self._tell(Ready(worker, self.clock() + START_SECONDS, "the simulation"))

    def restart(self, worker: int) -> None:
        self._generation[worker] += 1
        self._tell(Ready(worker, self.clock() + START_SECONDS, "the simulation"))

    def submit(self, task: Any, *, first: bool = False) -> None:
        (self._tasks.appendleft if first else self._tasks.append)(task)
        if self._idle:
            self._play(self._idle.popleft(), self.clock())

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        del weights
        self._published.append((self.clock(), version))

    def _play(self, worker: int, at: float) -> None:
        """Have a worker begin the next task at this time."""
        task, begins = self._tasks.popleft(), at + CALL_SECONDS
        node, version = worker // WORKERS_PER_NODE, self._version_at(begins)
        if self._node_version[node] != version:
            self._node_version[node] = version
            begins += WEIGHTS_SECONDS
        self._tell(Began(worker, begins, task))
        seconds = float(self._rng.lognormal(np.log(ROLLOUT_MEDIAN), ROLLOUT_SIGMA))
        dies = float(self._rng.exponential(3600 / DEATHS_PER_HOUR))
        if dies < seconds:
            self._tell(Lost(worker, begins + dies, "simulated"))
        else:
            rollout = pickle.loads(self._result)
            rollout.weights_version = version
            self._tell(Finished(worker, begins + seconds + CALL_SECONDS, task, Played(rollout)))

    def _version_at(self, at: float) -> int:
        return self._published[max(bisect.bisect_right(self._published, (at, 1 << 62)) - 1, 0)][1]

    def wait(self, seconds: float | None) -> PoolEvent | None:
        now = self.clock()
        while self._events:
            at, _, generation, event = self._events[0]
            if seconds is not None and at > now + seconds:
                break
            heapq.heappop(self._events)
            if generation != self._generation[event.worker]:
                continue
            self.now = max(self.now, at)
            if isinstance(event, (Ready, Finished)):  # the worker is idle, and takes the next task at once
                self._idle.append(event.worker)
                if self._tasks:
                    self._play(self._idle.popleft(), at)
            return event
        assert seconds is not None, "nothing will ever happen"
        self.now = max(self.now, now + seconds)
        return None

    def clear(self) -> None:
        self._tasks.clear()

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._events.clear()


def simulate(workers: int, epochs: int) -> dict[str, float]:
    config = RolloutWorkerConfig(
        CurriculumConfig(micro_eval_frequency=None, eval_frequency=None), MLPPolicy(4, Discrete(2))
    )
    worker = RolloutWorker(config)
    weights = {"weights": np.zeros(1)}
    pool = SimulatedPool(workers, pickle.dumps(RolloutWorker(config).rollout(), protocol=5))
    request = SourceRequest(worker, None, workers, MAX_STALENESS)
    source = PooledSource(request, lambda _: pool, PoolOptions(), clock=pool.clock)
    source.publish(weights, 0)
    found: list[Mapping[str, float]] = []
    began = spent = 0.0
    for version in range(1, epochs + 1):
        source.next(ROLLOUTS_PER_WORKER * workers)
        found.append(source.numbers())
        pool.train(TRAIN_SECONDS)
        source.publish(weights, version)
        if version == epochs // 3:  # workers have started, and the distribution is stationary
            began, spent = pool.now, pool.driver_seconds
            found.clear()
    seconds, driver = pool.now - began, pool.driver_seconds - spent
    source.close()
    rollouts = ROLLOUTS_PER_WORKER * workers * len(found)

    def mean(name: str) -> float:
        return sum(own[f"source/{name}"] for own in found) / len(found)

    return {
        "workers": workers,
        "rollouts_per_second": rollouts / seconds,
        "trainer_idle": mean("trainer_idle_seconds") * len(found) / seconds,
        "worker_idle": mean("worker_idle_share"),
        "driver_load": driver / seconds,
        "driver_seconds_per_rollout": driver / rollouts,
        "staleness": mean("staleness"),
        "staleness_max": max(own["source/staleness_max"] for own in found),
        "dropped": mean("dropped_rollouts") * len(found) / rollouts,
        "lost": mean("lost_workers") * len(found),
    }


def table(counts: list[int], epochs: int) -> Table:
    made = Table(
        "The driver with simulated workers",
        "none: where it becomes the limit",
        [
            "workers", "rollouts/s", "trainer idle", "workers idle", "driver load", "driver, a rollout",
            "staleness", "oldest", "dropped", "workers lost",
        ],
    )  # fmt: skip
    for workers in counts:
        found = simulate(workers, epochs)
        made.add(
            [
                str(workers), f"{found['rollouts_per_second']:.1f}", f"{found['trainer_idle']:.1%}",
                f"{found['worker_idle']:.1%}", f"{found['driver_load']:.1%}",
                f"{1e6 * found['driver_seconds_per_rollout']:.0f} µs", f"{found['staleness']:.2f}",
                f"{found['staleness_max']:.0f}", f"{found['dropped']:.2%}", f"{found['lost']:.0f}",
            ],
            **found,
        )  # fmt: skip
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 3, 10, 30, 100, 300, 1000])
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    logging.getLogger("hookline").setLevel(logging.ERROR)  # every death is logged
    report(describe_machine("jax"), [table(arguments.workers, arguments.epochs)], arguments.json)
