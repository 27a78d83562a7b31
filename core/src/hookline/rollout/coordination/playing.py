"""One episode of any policy in any environment, both as their owners made them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hookline.rollout.errors import LessonError, RolloutError
from hookline_hookspecs import Episode

__all__ = ["play_episode"]


def play_episode(
    environment: Any, policy: Any, *, kept: Sequence[str], number: int, seed: int, max_steps: int
) -> Episode:
    """Play from `reset()` to the end.

    An environment has Gymnasium's `reset` and `step`. A policy is called with an observation and gives an action, or an
    action and a dictionary of what else it knows. Texts become the prompt and the response, all else arrays by name.

    :param kept: what is kept of that dictionary, such as `logprob`.
    :param number: the episode's, for messages.
    """
    obs, info = _reset(environment, number, seed)
    act = getattr(policy, "act", policy)
    observations: list[Any] = []
    actions: list[Any] = []
    rewards: list[float] = []
    extras: dict[str, list[Any]] = {}
    terminated = truncated = False
    while not (terminated or truncated):
        where = f"episode {number}, step {len(rewards)}"
        answer = _attributed(f"{where}: the policy", act, obs)
        action, extra = answer if _has_extra(answer) else (answer, {})
        observations.append(obs)
        actions.append(action)
        for name in kept:
            if name in extra:
                extras.setdefault(name, []).append(extra[name])
        outcome = _attributed(f"{where}: the environment", environment.step, action)
        if not isinstance(outcome, tuple) or len(outcome) != 5:
            raise LessonError(f"{where}: step() must give (obs, reward, terminated, truncated, info), not {outcome!r}")
        obs, reward, terminated, truncated, _ = outcome
        if not math.isfinite(reward):
            raise LessonError(f"{where}: the environment gave the reward {reward}; a reward must be a finite number")
        rewards.append(float(reward))
        truncated = bool(truncated) or len(rewards) >= max_steps
    return _episode(observations, actions, rewards, extras, info, cut=bool(truncated and not terminated))


def _reset(environment: Any, number: int, seed: int) -> tuple[Any, dict[str, Any]]:
    parameters = inspect.signature(environment.reset).parameters
    arguments = {"seed": seed} if "seed" in parameters else {}
    answer = _attributed(f"episode {number}: the environment", environment.reset, **arguments)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise LessonError(f"episode {number}: reset() must give (obs, info), not {answer!r}")
    return answer[0], dict(answer[1])


def _attributed(who: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise LessonError(f"{who} raised {type(error).__name__}: {error}") from error


def _has_extra(answer: Any) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)


def _episode(
    observations: list[Any],
    actions: list[Any],
    rewards: list[float],
    extras: dict[str, list[Any]],
    info: dict[str, Any],
    *,
    cut: bool,
) -> Episode:
    reference = info.pop("reference", None)
    episode = Episode(
        prompt=observations[0] if isinstance(observations[0], str) else "",
        response="".join(actions) if isinstance(actions[0], str) else "",
        reference=reference,
        reward=sum(rewards),
        arrays={"rewards": np.asarray(rewards, np.float32)},
        metadata={**info, "length": len(rewards), "truncated": cut},
    )
    for name, values in {"obs": observations, "actions": actions, **extras}.items():
        if not isinstance(values[0], str):
            array = np.asarray(values)
            if array.dtype.hasobject:
                raise RolloutError(f"{name!r} of an episode cannot be an array: {values[0]!r}")
            episode.arrays[name] = array
    episode.logprobs = episode.arrays.pop("logprob", None)
    return episode
