"""`RayPool`: a `WorkerPool` of Ray actors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import ray

from hookline.rollout.errors import RolloutError
from hookline.rollout.sources import Player, ThreadPool
from hookline_ray.actor import RolloutActor
from hookline_ray.player import RayPlayer
from hookline_ray.source import RayOptions

__all__ = ["RayPool"]


class RayPool(ThreadPool):
    """One actor for each worker. A thread of this process waits for each.

    Weights are put into the object store once for each version. Each node fetches them once.

    :param make_player: called in each actor with its index.
    """

    def __init__(self, make_player: Callable[[int], Player], workers: int, options: RayOptions) -> None:
        super().__init__(self._make, workers, pack=ray.put)
        self._max_restarts = options.max_restarts
        self._starts: Counter[int] = Counter()
        self._code = ray.put(make_player)
        self._actor_class = ray.remote(RolloutActor).options(
            num_cpus=options.num_cpus,
            num_gpus=options.num_gpus,
            resources=options.resources,
            scheduling_strategy=options.scheduling_strategy,
            max_restarts=0,  # a driver starts another actor instead, which then has the weights
        )

    def _make(self, index: int) -> Player:
        self._starts[index] += 1
        if self._max_restarts is not None and self._starts[index] > 1 + self._max_restarts:
            raise RolloutError(
                f"rollout worker {index} was lost {self._starts[index] - 1} times, and "
                f"rollout.source_options.max_restarts is {self._max_restarts}"
            )
        return RayPlayer(index, self._actor_class, self._code)
