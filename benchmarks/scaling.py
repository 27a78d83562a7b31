"""What the driver of rollouts does with 1 to 1000 workers: its own code, with workers and a clock that are simulated.

    python benchmarks/scaling.py [--json FILE] [--svg FILE] [--workers 1 10 100 1000] [--epochs 12]

Simulated are calls, weights on their way to a node, rollouts with a long tail, deaths, and the learner. `PooledSource`
and `TaskDriver` run as they are, and so do the announcements, the curriculum and the unpickling of results. The CPU
time that these take passes on the simulated clock, too. Not simulated are the threads of a real pool, in which results
are unpickled, and Ray's calls. Each worker has four rollouts in an epoch, and needs as long for them as the learner for
its update, on the average. Workers take tasks from a queue, without the driver.

The weights of each version leave the driver once for each node, one node after the other, or by a tree: every node that
has them sends them on. There are tables of long rollouts by either way, and of short ones, by which the driver becomes
the limit. It takes three minutes.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import itertools
import logging
import math
import pickle
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring import Table, describe_machine, report
from scaling_picture import draw

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
ROLLOUT_SIGMA: Final = 0.8
"""The times of rollouts are log-normal: the mean is 1.4 medians, one in a hundred takes more than 6."""
START_SECONDS: Final = 10.0
DEATHS_PER_HOUR: Final = 0.2
"""Of each worker that plays: at a thousand workers, one every 18 seconds."""
ROLLOUTS_PER_WORKER: Final = 4
MAX_STALENESS: Final = 2


@dataclass(frozen=True)
class Scenario:
    title: str
    rollout_seconds: float
    """The median of a rollout."""
    tree: bool
    """Whether nodes send weights on. If not, all of them come from the driver."""

    @property
    def train_seconds(self) -> float:
        """As long as a worker's rollouts of an epoch, on the average."""
        return ROLLOUTS_PER_WORKER * self.rollout_seconds * math.exp(ROLLOUT_SIGMA**2 / 2)


LONG: Final = Scenario("rollouts of 2 s, weights from the driver", 2.0, tree=False)
SCENARIOS: Final = (
    LONG,
    Scenario("rollouts of 2 s, weights by a tree", 2.0, tree=True),
    Scenario("rollouts of 0.2 s, weights by a tree", 0.2, tree=True),
)


class Network:
    """When the weights of a version are at a node."""

    def __init__(self, *, tree: bool) -> None:
        self._tree = tree
        self._arrivals: dict[tuple[int, int], float] = {}
        self._sent: Counter[int] = Counter()
        self._link_free = 0.0

    def arrival(self, node: int, version: int, at: float) -> float:
        """The first worker of a node that asks has them sent. The others wait for them."""
        if (node, version) not in self._arrivals:
            self._sent[version] += 1
            if self._tree:  # after r rounds, 2**r nodes have them, the driver's among them
                rounds = self._sent[version].bit_length()
                self._arrivals[node, version] = at + rounds * WEIGHTS_SECONDS
            else:
                self._link_free = max(self._link_free, at) + WEIGHTS_SECONDS
                self._arrivals[node, version] = self._link_free
        return max(self._arrivals[node, version], at)


class SimulatedPool:
    """Workers that sleep on a simulated clock. The CPU time of all code outside of it passes on that clock, too.

    :param result: a pickled rollout. Each result is unpickled where the driver gets it.
    """

    def __init__(self, workers: int, result: bytes, scenario: Scenario) -> None:
        self.workers = workers
        self.now = 0.0
        self.driver_seconds = 0.0
        """The CPU time that has passed on the clock."""
        self._result = result
        self._scenario = scenario
        self._network = Network(tree=scenario.tree)
        self._rng = np.random.default_rng(workers)
        self._cpu = time.thread_time()
        self._tasks: deque[tuple[float, Any]] = deque()
        """Tasks with the time at which they were submitted."""
        self._idle: deque[int] = deque()
        self._generation = [0] * workers
        """Counts the restarts of each worker. Events of earlier ones are dropped."""
        self._published: list[tuple[float, int]] = []
        """When each version was published."""
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
        (self._tasks.appendleft if first else self._tasks.append)((self.clock(), task))
        if self._idle:
            self._play(self._idle.popleft(), self.now)

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        del weights
        self._published.append((self.clock(), version))

    def _play(self, worker: int, at: float) -> None:
        """Have a worker that is idle since this time take the next task."""
        submitted, task = self._tasks.popleft()
        asked = max(at, submitted) + CALL_SECONDS
        version = self._version_at(asked)
        begins = self._network.arrival(worker // WORKERS_PER_NODE, version, asked)
        self._tell(Began(worker, begins, task))
        seconds = float(self._rng.lognormal(math.log(self._scenario.rollout_seconds), ROLLOUT_SIGMA))
        dies = float(self._rng.exponential(3600 / DEATHS_PER_HOUR))
        if dies < seconds:
            self._tell(Lost(worker, begins + dies, "simulated"))
        else:
            self._tell(Finished(worker, begins + seconds + CALL_SECONDS, task, Played(version)))

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
            return self._received(event) if isinstance(event, Finished) else event
        assert seconds is not None, "nothing will ever happen"
        self.now = max(self.now, now + seconds)
        return None

    def _received(self, event: Finished) -> Finished:
        rollout = pickle.loads(self._result)
        rollout.weights_version = event.played.result
        return replace(event, played=Played(rollout))

    def clear(self) -> None:
        self._tasks.clear()

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self._events.clear()


def simulate(workers: int, epochs: int, scenario: Scenario = LONG) -> dict[str, float]:
    """Train for some epochs. Returns what the last two thirds of them were like."""
    config = RolloutWorkerConfig(
        CurriculumConfig(micro_eval_frequency=None, eval_frequency=None), MLPPolicy(4, Discrete(2))
    )
    weights = {"weights": np.zeros(1)}
    pool = SimulatedPool(workers, pickle.dumps(RolloutWorker(config).rollout(), protocol=5), scenario)
    request = SourceRequest(RolloutWorker(config), None, workers, MAX_STALENESS)
    source = PooledSource(request, lambda _: pool, PoolOptions(), clock=pool.clock)
    source.publish(weights, 0)
    found: list[Mapping[str, float]] = []
    began = spent = 0.0
    for version in range(1, epochs + 1):
        source.next(ROLLOUTS_PER_WORKER * workers)
        found.append(source.numbers())
        pool.train(scenario.train_seconds)
        source.publish(weights, version)
        if version == epochs // 3:  # workers have started, and the distribution is stationary
            began, spent = pool.now, pool.driver_seconds
            found.clear()
    seconds, driver = pool.now - began, pool.driver_seconds - spent
    source.close()
    rollouts = ROLLOUTS_PER_WORKER * workers * len(found)
    trained = scenario.train_seconds * len(found)

    def mean(name: str) -> float:
        return sum(own[f"source/{name}"] for own in found) / len(found)

    return {
        "workers": workers,
        "rollouts_per_second": rollouts / seconds,
        "trainer_idle": 1 - trained / seconds,
        "worker_idle": mean("worker_idle_share"),
        "driver_load": driver / seconds,
        "driver_seconds_per_rollout": driver / rollouts,
        "staleness": mean("staleness"),
        "staleness_max": max(own["source/staleness_max"] for own in found),
        "dropped": mean("dropped_rollouts") * len(found) / rollouts,
        "lost": mean("lost_workers") * len(found),
    }


COLUMNS: Final = (
    "workers", "rollouts/s", "trainer idle", "workers idle", "driver load", "driver, a rollout", "staleness", "oldest",
    "dropped", "workers lost",
)  # fmt: skip


def table(scenario: Scenario, counts: Sequence[int], epochs: int) -> Table:
    made = Table(f"The driver with simulated workers: {scenario.title}", "none: where it becomes the limit", COLUMNS)
    for workers in counts:
        found = simulate(workers, max(epochs, 300 // workers), scenario)  # few workers make few rollouts
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
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw it")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 3, 10, 30, 100, 300, 1000])
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    logging.getLogger("hookline").setLevel(logging.ERROR)  # every death is logged
    tables = [table(scenario, arguments.workers, arguments.epochs) for scenario in SCENARIOS]
    report(describe_machine("jax"), tables, arguments.json)
    if arguments.svg is not None:
        arguments.svg.write_text(draw({own.title.partition(": ")[2]: own.rows for own in tables}), encoding="utf-8")
