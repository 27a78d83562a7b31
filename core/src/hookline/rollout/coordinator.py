"""`create_rollout_coordinator`: episodes of any policy in any environment, from as many processes as asked for."""

from __future__ import annotations

import logging
import queue
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from hookline.extras import require
from hookline.plugins.errors import did_you_mean
from hookline.policies.weights import to_numpy
from hookline.rollout.errors import RolloutError
from hookline_hookspecs import Episode, EpisodeBatch

if TYPE_CHECKING:
    from hookline.rollout.coordination.messages import Message
    from hookline.rollout.coordination.process import Answer, WorkerProcess

__all__ = ["RolloutCoordinator", "WorkerDeath", "create_rollout_coordinator"]

logger = logging.getLogger("hookline.rollout")

KEPT_FOR: Final[Mapping[str, tuple[str, ...]]] = {"ppo": ("logprob", "value"), "grpo": ("logprob",)}
"""What each algorithm needs of what a policy knows of its actions."""

DEATHS_PER_EPISODE: Final = 3
"""An episode that so many workers have died of is not tried again."""


@dataclass(frozen=True)
class WorkerDeath:
    """A worker process that died and was replaced."""

    worker: int
    how: str
    episode: int | None
    """The episode that it was playing, which its replacement plays again."""


def create_rollout_coordinator(
    env_fn: Callable[[], Any],
    policy_fn: Callable[[], Any],
    algorithm: str = "ppo",
    num_workers: int = 1,
    *,
    episodes_per_collect: int = 32,
    max_episode_steps: int = 10_000,
    seed: int = 0,
) -> RolloutCoordinator:
    """A coordinator that plays in this process, or in processes of their own when `num_workers` is more than one.

    :param env_fn: makes an environment with Gymnasium's `reset` and `step`. Observations and actions may be texts.
    :param policy_fn: makes a policy: called with an observation it gives an action, or an action and a dictionary.
    :param algorithm: `ppo` keeps the `logprob` and `value` of that dictionary, `grpo` the `logprob`.
    :param seed: episodes are numbered and seeded by it, so that it does not matter which worker plays which.
    """
    if algorithm not in KEPT_FOR:
        known = ", ".join(KEPT_FOR)
        raise RolloutError(f"there is no algorithm {algorithm!r}{did_you_mean(algorithm, KEPT_FOR)}; known are {known}")
    for name, value in {"num_workers": num_workers, "episodes_per_collect": episodes_per_collect}.items():
        if value < 1:
            raise RolloutError(f"{name} must be at least 1, got {value!r}")
    require("numpy", "a rollout coordinator")
    settings = {"kept": KEPT_FOR[algorithm], "max_steps": max_episode_steps}
    player: _Here | _Processes = (
        _Here(env_fn, policy_fn) if num_workers == 1 else _Processes(env_fn, policy_fn, num_workers)
    )
    return RolloutCoordinator(player, settings, episodes_per_collect, seed)


class RolloutCoordinator:
    """Collects episodes. Close it, or use it in a `with`, when there is nothing more to collect."""

    def __init__(self, player: _Here | _Processes, settings: Mapping[str, Any], episodes: int, seed: int) -> None:
        self._player = player
        self._settings = settings
        self._episodes = episodes
        self._seed = seed
        self._collections = 0
        self._version = 0

    @property
    def deaths(self) -> list[WorkerDeath]:
        """The worker processes that died and were replaced."""
        return self._player.deaths

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes, none when episodes are played in this one."""
        return self._player.pids

    def collect(self) -> EpisodeBatch:
        """Play so many episodes, and return them in the order of their numbers."""
        collection, self._collections = self._collections, self._collections + 1
        first = collection * self._episodes
        tasks = {
            number: {**self._settings, "episode": number, "seed": self._seed + number, "collection": collection}
            for number in range(first, first + self._episodes)
        }
        played = self._player.play(tasks)
        episodes = [played[number] for number in tasks]
        for episode in episodes:
            episode.metadata["weights_version"] = self._version
        return EpisodeBatch(episodes=episodes, weights_version=self._version, step=collection)

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Hand weights to every policy, by its own `update_weights(weights, version)`."""
        self._player.update_weights(to_numpy(weights), version)
        self._version = version

    def close(self) -> None:
        """End all worker processes."""
        self._player.close()

    def __enter__(self) -> RolloutCoordinator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Here:
    """Plays in this process."""

    def __init__(self, env_fn: Callable[[], Any], policy_fn: Callable[[], Any]) -> None:
        self._environment, self._policy = env_fn(), policy_fn()
        self.deaths: list[WorkerDeath] = []
        self.pids: list[int] = []

    def play(self, tasks: Mapping[int, Mapping[str, Any]]) -> dict[int, Episode]:
        from hookline.rollout.coordination.playing import play_episode

        return {
            number: play_episode(
                self._environment,
                self._policy,
                kept=task["kept"],
                number=number,
                seed=task["seed"],
                max_steps=task["max_steps"],
            )
            for number, task in tasks.items()
        }

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._policy.update_weights(weights, version)

    def close(self) -> None:
        if hasattr(self._environment, "close"):
            self._environment.close()


class _Processes:
    """Plays in processes, and replaces those that die."""

    def __init__(self, env_fn: Callable[[], Any], policy_fn: Callable[[], Any], count: int) -> None:
        cloudpickle = require("cloudpickle", "a coordinator with worker processes")
        from hookline.rollout.coordination.messages import Message

        self._start = Message({"do": "start", "path": sys.path}, code=cloudpickle.dumps((env_fn, policy_fn)))
        self._weights: Message | None = None
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.deaths: list[WorkerDeath] = []
        self._workers = [self._start_worker(index) for index in range(count)]

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _start_worker(self, index: int) -> WorkerProcess:
        from hookline.rollout.coordination.process import WorkerProcess

        worker = WorkerProcess(index, self._start, self._answers)
        if self._weights is not None:
            worker.send(self._weights)
        return worker

    def play(self, tasks: Mapping[int, Mapping[str, Any]]) -> dict[int, Episode]:
        from hookline.rollout.coordination.messages import episode_of

        if not self._workers:
            raise RolloutError("the coordinator is closed")
        waiting = sorted(tasks, reverse=True)
        collection = next(iter(tasks.values()))["collection"]
        tried: Counter[int] = Counter()
        played: dict[int, Episode] = {}
        for worker in self._workers:
            worker.episode = None
            self._give_next(worker, waiting, tasks)
        while len(played) < len(tasks):
            answer = self._answers.get()
            if answer.process not in self._workers:
                continue  # the last words of one that has been replaced
            if answer.message is None:
                self._replace(answer.process, waiting, tried, tasks)
            elif "error" in answer.message.facts:
                self._raise(answer.process, answer.message, collection)
            elif answer.message.facts.get("collection") == collection:
                played[answer.message.facts["episode"]] = episode_of(answer.message)
                answer.process.episode = None
                self._give_next(answer.process, waiting, tasks)
        return played

    def _give_next(self, worker: WorkerProcess, waiting: list[int], tasks: Mapping[int, Mapping[str, Any]]) -> None:
        from hookline.rollout.coordination.messages import Message

        if waiting:
            worker.episode = waiting.pop()
            worker.send(Message({"do": "play", **tasks[worker.episode]}))

    def _replace(
        self, worker: WorkerProcess, waiting: list[int], tried: Counter[int], tasks: Mapping[int, Mapping[str, Any]]
    ) -> None:
        from hookline.rollout.coordination.process import describe_exit

        death = WorkerDeath(worker.index, describe_exit(worker.close()), worker.episode)
        self.deaths.append(death)
        logger.warning("rollout worker %d died (%s) in episode %s: replaced", death.worker, death.how, death.episode)
        replacement = self._start_worker(worker.index)
        self._workers[worker.index] = replacement
        if death.episode is not None:
            tried[death.episode] += 1
            if tried[death.episode] == DEATHS_PER_EPISODE:
                raise RolloutError(
                    f"episode {death.episode}: {DEATHS_PER_EPISODE} rollout workers died of it, the last {death.how}; "
                    "what they printed is on the standard error"
                )
            waiting.append(death.episode)
        self._give_next(replacement, waiting, tasks)

    def _raise(self, worker: WorkerProcess, message: Message, collection: int) -> None:
        if message.facts["collection"] not in (None, collection):
            return  # of an earlier collection that has failed already
        error = RolloutError(f"rollout worker {worker.index}: {message.facts['error']}")
        error.add_note(f"in the worker process:\n{message.facts['traceback']}")
        raise error

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        from hookline.rollout.coordination.messages import Message

        self._weights = Message({"do": "take_weights", "version": version}, weights)
        for worker in self._workers:
            worker.send(self._weights)

    def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
