"""`GymnasiumRunner`: steps several Gymnasium environments, with one call of the policy for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from hookline.policies import MLPPolicy
from hookline.policies.protocol import Actor, ActorWeights, Discrete, outputs_for
from hookline.rollout.curriculum import Lesson
from hookline.rollout.environments.gymnasium_env import (
    Factory,
    actions_of,
    actor_of,
    observation_size_of,
    observer_of,
)
from hookline.rollout.environments.outcomes import STOPS, attributed, checked_reward, raised
from hookline.rollout.errors import LessonError
from hookline.rollout.rng import seed_of
from hookline.rollout.runners.control import EpisodeRecorder, control_rollout, played_episode
from hookline.rollout.runners.jax_runner import EVALUATION_STEP_LIMIT
from hookline_hookspecs import Episode, EvaluationRequest, Rollout
from hookline_hookspecs.errors import shortened

__all__ = ["GymnasiumRunner"]

OUTCOME: Final = ("final_obs", "rewards", "terminated", "truncated")
"""The names of the values that `LessonEnvironment.step` returns."""


class LessonEnvironment:
    """One environment and its current episode. Exceptions and invalid values raise an error that says where.

    `step` does not use `attributed`, which would double its cost.
    """

    def __init__(self, lesson: Lesson, name: str, factory: Factory, index: int) -> None:
        self._name = f"lesson {lesson.lesson_id!r}: environment {name!r} (index {index})"
        self._limit = lesson.max_episode_steps
        self.episode = 0
        self.length = 0
        self.total_reward = 0.0
        with attributed(f"{self._name}, when it was made"):
            self.environment = factory()
        if not hasattr(self.environment, "observation_space"):
            raise LessonError(
                f"{self._name}: it is a function or class that made {shortened(self.environment)}, which is not a "
                "Gymnasium environment; other environments are given as objects, such as Lesson(environment=Mine())"
            )
        self.observation_size = observation_size_of(name, self.environment.observation_space)
        self.actions = actions_of(name, self.environment.action_space)
        self._observe = observer_of(self.environment.observation_space)
        self._act = actor_of(self.environment.action_space)

    def reset(self, seed: int | None = None) -> np.ndarray:
        where = f"{self._name}, episode {self.episode}, reset"
        with attributed(where):
            obs, _ = self.environment.reset(seed=seed)
        self.length = 0
        self.total_reward = 0.0
        return self._observe(obs, lambda: where)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        try:
            obs, given, terminated, truncated, _ = self.environment.step(self._act(action))
            terminated, truncated = bool(terminated), bool(truncated)
        except STOPS:
            raise
        except BaseException as error:
            raise raised(self.where(), error) from error
        obs, reward = self._observe(obs, self.where), checked_reward(given, self.where)
        self.length += 1
        self.total_reward += reward
        truncated = truncated or (self._limit is not None and self.length >= self._limit)
        self.episode += terminated or truncated
        return obs, reward, terminated, truncated

    def close(self) -> None:
        with attributed(f"{self._name}, when it was closed"):
            self.environment.close()

    def where(self) -> str:
        """The lesson, environment, episode and step, for errors."""
        return f"{self._name}, episode {self.episode}, step {self.length}"


class GymnasiumRunner:
    """Keeps several environments, and steps them one after another."""

    plays_text = False
    _actor: Actor

    def __init__(self, lesson: Lesson, name: str, factory: Factory, count: int, steps: int) -> None:
        self._lesson = lesson
        self._name = name
        self._factory = factory
        self._steps = steps
        self._envs = [LessonEnvironment(lesson, name, factory, index) for index in range(count)]
        self._obs: np.ndarray | None = None

    def default_policy(self) -> MLPPolicy:
        return MLPPolicy(self._envs[0].observation_size, self._envs[0].actions)

    def use_actor(self, actor: Actor) -> None:
        where = f"lesson {self._lesson.lesson_id!r}: environment {self._name!r}"
        actor.check(where, self._envs[0].observation_size, self._envs[0].actions)
        self._actor = actor

    def rollout(self, weights: ActorWeights, key: jax.Array, version: int) -> Rollout:
        start_key, action_key = jax.random.split(key)
        obs = _reset_all(self._envs, start_key) if self._obs is None else self._obs
        self._obs = None  # if an environment raises, the next rollout resets all of them
        batch, steps = len(self._envs), self._steps
        act = self._actor.playing(weights, seed_of(action_key))
        arrays = _empty_arrays(self._envs[0], steps, batch)
        arrays["returns"], arrays["lengths"] = np.empty((steps, batch), np.float32), np.empty((steps, batch), np.int32)
        for t in range(steps):
            actions = act(obs)
            arrays["obs"][t], arrays["actions"][t] = obs, actions
            outcomes = [env.step(action) for env, action in zip(self._envs, actions, strict=True)]
            # Whole rows at a time, because writing single numbers to an array is slower than stepping an environment.
            for name, column in zip(OUTCOME, zip(*outcomes, strict=True), strict=True):
                arrays[name][t] = column
            arrays["returns"][t] = [env.total_reward for env in self._envs]
            arrays["lengths"][t] = [env.length for env in self._envs]
            obs = arrays["final_obs"][t].copy()
            for i in np.flatnonzero(arrays["terminated"][t] | arrays["truncated"][t]):
                obs[i] = self._envs[i].reset()
        self._obs = obs
        returns, lengths = arrays.pop("returns"), arrays.pop("lengths")
        arrays |= self._actor.logprobs_and_values(weights, arrays, obs)
        del arrays["final_obs"]
        return control_rollout(self._lesson.lesson_id, version, self._name, arrays, returns, lengths)

    def evaluate(self, weights: ActorWeights, key: jax.Array, request: EvaluationRequest) -> list[Episode]:
        """Play on separate environments, so that those of the rollouts do not change."""
        envs = [
            LessonEnvironment(self._lesson, self._name, self._factory, index)
            for index in range(min(request.n_examples, len(self._envs)))
        ]
        episodes: list[Episode] = []
        try:
            while len(episodes) < request.n_examples:
                key, round_key = jax.random.split(key)
                playing = envs[: request.n_examples - len(episodes)]
                recorded = max(0, request.replays - len(episodes))
                recorders = [EpisodeRecorder(env.environment) for env in playing[:recorded]]
                episodes += self._play_round(playing, weights, round_key, request.greedy, recorders)
        finally:
            for env in envs:
                env.close()
        return episodes

    def _play_round(
        self,
        envs: Sequence[LessonEnvironment],
        weights: ActorWeights,
        key: jax.Array,
        greedy: bool,
        recorders: Sequence[EpisodeRecorder],
    ) -> list[Episode]:
        """Play one episode in each environment. There may be fewer recorders than environments."""
        start_key, action_key = jax.random.split(key)
        obs = _reset_all(envs, start_key)
        act = self._actor.playing(weights, None if greedy else seed_of(action_key))
        playing = list(range(len(envs)))
        cut = [False] * len(envs)
        for _ in range(EVALUATION_STEP_LIMIT):
            actions = act(obs)
            for i in playing.copy():
                if i < len(recorders):
                    with attributed(f"{envs[i].where()}, render"):
                        recorders[i].before_step(obs[i], actions[i])
                obs[i], reward, terminated, truncated = envs[i].step(actions[i])
                if i < len(recorders):
                    recorders[i].after_step(reward)
                if terminated or truncated:
                    playing.remove(i)
                    cut[i] = not terminated
            if not playing:
                episodes = [
                    played_episode(self._name, env.total_reward, env.length, truncated=was_cut)
                    for env, was_cut in zip(envs, cut, strict=True)
                ]
                for episode, recorder in zip(episodes, recorders, strict=False):
                    episode.arrays.update(recorder.arrays())
                return episodes
        raise LessonError(
            f"lesson {self._lesson.lesson_id!r}: {len(playing)} of {len(envs)} episodes in {self._name!r} did not "
            f"end in {EVALUATION_STEP_LIMIT} steps; give the lesson max_episode_steps"
        )

    def state_dict(self) -> dict[str, Any] | None:
        """None, because Gymnasium cannot save an environment. A restored runner starts new episodes."""
        return None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        del state
        self._obs = None

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _reset_all(envs: Sequence[LessonEnvironment], key: jax.Array) -> np.ndarray:
    seeds = jax.random.randint(key, (len(envs),), 0, 2**31 - 1).tolist()
    return np.stack([env.reset(seed) for env, seed in zip(envs, seeds, strict=True)])


def _empty_arrays(like: LessonEnvironment, steps: int, batch: int) -> dict[str, np.ndarray]:
    discrete = isinstance(like.actions, Discrete)
    action_shape = () if discrete else (outputs_for(like.actions),)
    return {
        "obs": np.empty((steps, batch, like.observation_size), np.float32),
        "actions": np.empty((steps, batch, *action_shape), np.int32 if discrete else np.float32),
        "rewards": np.empty((steps, batch), np.float32),
        "terminated": np.empty((steps, batch), bool),
        "truncated": np.empty((steps, batch), bool),
        "final_obs": np.empty((steps, batch, like.observation_size), np.float32),
    }
