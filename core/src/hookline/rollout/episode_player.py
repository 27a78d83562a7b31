"""`EpisodePlayer`: plays episodes of any policy in any environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hookline.rollout.environments.outcomes import attributed, checked_observation, checked_reward
from hookline.rollout.errors import LessonError
from hookline.rollout.sources.pool import Played
from hookline_hookspecs import Episode
from hookline_hookspecs.errors import shortened

__all__ = ["EpisodePlayer", "EpisodeTask"]


@dataclass(frozen=True)
class EpisodeTask:
    """An episode to play."""

    number: int
    seed: int

    def __str__(self) -> str:
        return f"episode {self.number}"


class EpisodePlayer:
    """Plays episodes of one policy in one environment.

    An environment has Gymnasium's `reset` and `step`. A policy is called with an observation and returns an
    action, or an action and a dictionary. Strings become the prompt and the response. Other values become arrays.

    :param kept: the keys to keep of the policy's dictionary, such as `logprob`.
    :param max_steps: longer episodes are truncated.
    """

    _environment: Any = None

    def __init__(
        self, env_fn: Callable[[], Any], policy_fn: Callable[[], Any], kept: Sequence[str], max_steps: int
    ) -> None:
        self._env_fn = env_fn
        self._policy_fn = policy_fn
        self._kept = kept
        self._max_steps = max_steps

    def start(self) -> str:
        """Call both functions. An error names the function that raised it."""
        with attributed("env_fn"):
            environment = self._environment = self._env_fn()
        with attributed("policy_fn"):
            self._policy = self._policy_fn()
        self._act = getattr(self._policy, "act", self._policy)
        # A Gymnasium wrapper has the id of the environment that it wraps.
        name = getattr(getattr(environment, "spec", None), "id", None) or type(environment).__name__
        self._name = f"environment {name!r}"
        return self._name

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        with attributed(f"the policy, version {version} of the weights"):
            self._policy.update_weights(weights, version)

    def kill(self) -> None:
        """A running episode cannot be ended."""

    def close(self) -> None:
        if hasattr(self._environment, "close"):
            with attributed(f"{self._name}, close"):
                self._environment.close()

    def play(self, task: EpisodeTask) -> Played:
        return Played(self._play(task))

    def _play(self, task: EpisodeTask) -> Episode:
        """Play an episode from `reset()` to its end."""
        episode = f"{self._name}, {task}"
        obs, info = self._reset(episode, task.seed)
        shape = None if isinstance(obs, str) else np.shape(obs)
        observations: list[Any] = []
        actions: list[Any] = []
        rewards: list[float] = []
        extras: dict[str, list[Any]] = {}
        terminated = truncated = False
        while not (terminated or truncated):
            where = f"{episode}, step {len(rewards)}"
            with attributed(f"the policy in {where}"):
                answer = self._act(obs)
            action, extra = answer if _has_extra(answer) else (answer, {})
            observations.append(obs)
            actions.append(action)
            for name in self._kept:
                if name in extra:
                    extras.setdefault(name, []).append(extra[name])
            with attributed(where):
                outcome = self._environment.step(action)
                if not isinstance(outcome, tuple) or len(outcome) != 5:
                    raise LessonError(
                        f"{where}: step() must return (obs, reward, terminated, truncated, info), "
                        f"not {shortened(outcome)}"
                    )
                terminated, truncated = bool(outcome[2]), bool(outcome[3])
            rewards.append(checked_reward(outcome[1], partial(str, where)))
            truncated = truncated or len(rewards) >= self._max_steps
            if not (terminated or truncated):  # the observation after the end is not used
                obs = _checked(outcome[0], shape, where)
        numbers = {"obs": observations, "actions": actions, **extras}
        arrays = {name: _array(values, f"{episode}: {name!r}") for name, values in numbers.items()}
        return Episode(
            prompt=observations[0] if isinstance(observations[0], str) else "",
            response="".join(actions) if isinstance(actions[0], str) else "",
            reference=info.pop("reference", None),
            reward=sum(rewards),
            logprobs=arrays.pop("logprob", None),
            arrays={"rewards": np.asarray(rewards, np.float32), **{n: a for n, a in arrays.items() if a is not None}},
            metadata={**info, "length": len(rewards), "truncated": truncated and not terminated},
        )

    def _reset(self, episode: str, seed: int) -> tuple[Any, dict[str, Any]]:
        where = f"{episode}, reset"
        with attributed(where):
            takes_seed = "seed" in inspect.signature(self._environment.reset).parameters
            answer = self._environment.reset(**({"seed": seed} if takes_seed else {}))
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise LessonError(f"{where}: reset() must return (obs, info), not {shortened(answer)}")
            info = dict(answer[1])
        obs = answer[0]
        return obs if isinstance(obs, str) else checked_observation(obs, None, partial(str, where)), info


def _checked(obs: Any, shape: tuple[int, ...] | None, where: str) -> Any:
    """Check that an observation is like the first one: a string if `shape` is None, else an array of this shape."""
    if shape is not None:
        return checked_observation(obs, shape, partial(str, where))
    if not isinstance(obs, str):
        raise LessonError(f"{where}: the observation is {shortened(obs)}; it must be a string like the first one")
    return obs


def _has_extra(answer: Any) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)


def _array(values: list[Any], where: str) -> np.ndarray | None:
    """The values of an episode as one array. None for strings."""
    if isinstance(values[0], str):
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.hasobject:
        raise LessonError(f"{where} must have the same shape at every step, got {shortened(values)}")
    return array
