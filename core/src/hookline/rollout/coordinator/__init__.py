"""`create_rollout_coordinator`: collects episodes of any policy in any environment, in one or more processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from hookline.errors import did_you_mean
from hookline.extras import require
from hookline.policies.weights import to_numpy
from hookline.rollout.errors import RolloutError
from hookline_hookspecs import Episode, EpisodeBatch

if TYPE_CHECKING:
    from hookline.rollout.coordinator.pool import WorkerDeath, WorkerPool

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
    settings = {"kept": KEPT_FOR[algorithm], "max_steps": max_episode_steps}
    player: _Here | WorkerPool
    if num_workers == 1 and timeout_seconds is None:
        player = _Here(env_fn, policy_fn)
    else:
        from hookline.rollout.coordinator.pool import WorkerPool

        player = WorkerPool(env_fn, policy_fn, num_workers, timeout_seconds)
    return RolloutCoordinator(player, settings, episodes_per_collect, seed)


class RolloutCoordinator:
    """Collects episodes. Close it after use, or use it in a `with` statement."""

    def __init__(self, player: _Here | WorkerPool, settings: Mapping[str, Any], episodes: int, seed: int) -> None:
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
        """The ids of the worker processes. Empty if episodes are played in this process."""
        return self._player.pids

    def collect(self) -> EpisodeBatch:
        """Play `episodes_per_collect` episodes, and return them in the order of their numbers."""
        collection, self._collections = self._collections, self._collections + 1
        first = collection * self._episodes
        tasks = {
            number: {**self._settings, "seed": self._seed + number} for number in range(first, first + self._episodes)
        }
        played = self._player.play(tasks)
        episodes = [played[number] for number in tasks]
        for episode in episodes:
            episode.metadata["weights_version"] = self._version
        return EpisodeBatch(episodes=episodes, weights_version=self._version, step=collection)

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Pass weights to every policy's `update_weights(weights, version)`."""
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
        from hookline.rollout.coordinator.player import make_player

        self._player = make_player(env_fn, policy_fn)
        self.deaths: list[WorkerDeath] = []
        self.pids: list[int] = []

    def play(self, tasks: Mapping[int, Mapping[str, Any]]) -> dict[int, Episode]:
        return {number: self._player.play(number, **task) for number, task in tasks.items()}

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._player.update_weights(weights, version)

    def close(self) -> None:
        self._player.close()
