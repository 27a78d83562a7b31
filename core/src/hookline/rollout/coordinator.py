"""`create_rollout_coordinator`: collects episodes of any policy in any environment, in one or more processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from hookline.errors import did_you_mean
from hookline.importing import require
from hookline.policies.weights import to_numpy
from hookline.rollout.errors import RolloutError
from hookline.rollout.sources.driver import TaskDriver, WorkerDeath
from hookline.rollout.sources.process_player import process_pool
from hookline_hookspecs import Episode, EpisodeBatch

if TYPE_CHECKING:
    from hookline.rollout.episode_player import EpisodePlayer, EpisodeTask

__all__ = ["RolloutCoordinator", "create_rollout_coordinator"]

KEPT_FOR: Final[Mapping[str, tuple[str, ...]]] = {"ppo": ("logprob", "value"), "grpo": ("logprob",)}
"""The values of the policy's dictionary that each algorithm needs."""


def create_rollout_coordinator(
    env_fn: Callable[[], Any],
    policy_fn: Callable[[], Any],
    algorithm: str = "ppo",
    num_workers: int = 1,
    *,
    episodes_per_collect: int = 32,
    max_episode_steps: int = 10_000,
    seed: int = 0,
    timeout_seconds: float | None = None,
) -> RolloutCoordinator:
    """A coordinator that plays in this process, or in worker processes.

    Worker processes are used if `num_workers` is more than one or there is a timeout, since a hung environment in this
    process could not be stopped. A worker that dies or hangs is replaced, and its episode is played again.

    :param env_fn: returns an environment with Gymnasium's `reset` and `step`. Observations and actions may be strings.
    :param policy_fn: returns a policy. Called with an observation, it returns an action, or an action and a dictionary.
    :param algorithm: `ppo` keeps the `logprob` and `value` of that dictionary, `grpo` the `logprob`.
    :param seed: each episode's seed is this plus its number, so it does not matter which worker plays it.
    :param timeout_seconds: the time limit of an episode, or None. Starting a worker may take longer.
    """
    if algorithm not in KEPT_FOR:
        known = ", ".join(KEPT_FOR)
        raise RolloutError(f"there is no algorithm {algorithm!r}{did_you_mean(algorithm, KEPT_FOR)}; known are {known}")
    for name, value in {"num_workers": num_workers, "episodes_per_collect": episodes_per_collect}.items():
        if value < 1:
            raise RolloutError(f"{name} must be at least 1, got {value!r}")
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise RolloutError(f"timeout_seconds must be greater than 0 or None, got {timeout_seconds!r}")
    require("numpy", "a rollout coordinator")
    from hookline.rollout.episode_player import EpisodePlayer

    def make_player(_: int) -> EpisodePlayer:
        return EpisodePlayer(env_fn, policy_fn, KEPT_FOR[algorithm], max_episode_steps)

    if num_workers == 1 and timeout_seconds is None:
        player = make_player(0)
        player.start()
        return RolloutCoordinator(player, episodes_per_collect, seed)
    advice = "raise create_rollout_coordinator(timeout_seconds=...), or find where it hangs"
    driver = TaskDriver(process_pool(make_player, num_workers), deadline_seconds=timeout_seconds, advice=advice)
    driver.start()
    return RolloutCoordinator(driver, episodes_per_collect, seed)


class RolloutCoordinator:
    """Collects episodes. Close it after use, or use it in a `with` statement.

    :param player: plays in this process, or has episodes played in others.
    """

    def __init__(self, player: EpisodePlayer | TaskDriver, episodes: int, seed: int) -> None:
        self._player = player
        self._episodes = episodes
        self._seed = seed
        self._collections = 0
        self._version = 0
        self._is_closed = False

    @property
    def deaths(self) -> list[WorkerDeath]:
        """The worker processes that died and were replaced."""
        return self._player.deaths if isinstance(self._player, TaskDriver) else []

    @property
    def worker_pids(self) -> list[int]:
        """The ids of the worker processes. Empty if episodes are played in this process."""
        return self._player.pool.pids() if isinstance(self._player, TaskDriver) else []

    def collect(self) -> EpisodeBatch:
        """Play `episodes_per_collect` episodes, and return them in the order of their numbers."""
        from hookline.rollout.episode_player import EpisodeTask

        if self._is_closed:
            raise RolloutError("the coordinator is closed")
        collection, self._collections = self._collections, self._collections + 1
        first = collection * self._episodes
        tasks = [EpisodeTask(number, self._seed + number) for number in range(first, first + self._episodes)]
        if isinstance(self._player, TaskDriver):
            episodes = self._have_played(self._player, tasks)
        else:
            episodes = [self._player.play(task).result for task in tasks]
        for episode in episodes:
            episode.metadata["weights_version"] = self._version
        return EpisodeBatch(episodes=episodes, weights_version=self._version, step=collection)

    def _have_played(self, driver: TaskDriver, tasks: Sequence[EpisodeTask]) -> list[Episode]:
        driver.forget()  # what an error has left over
        for task in tasks:
            driver.submit(task)
        results = [driver.next_result() for _ in tasks]
        return [own.played.result for own in sorted(results, key=lambda own: int(own.task.number))]

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Pass weights to every policy's `update_weights(weights, version)`."""
        copied = to_numpy(weights)
        if isinstance(self._player, TaskDriver):
            self._player.pool.publish(copied, version)
        else:
            self._player.load_weights(copied, version)
        self._version = version

    def close(self) -> None:
        """End all worker processes."""
        if not self._is_closed:
            self._is_closed = True
            self._player.close()

    def __enter__(self) -> RolloutCoordinator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
