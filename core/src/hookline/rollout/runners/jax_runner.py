"""Lessons in JAX-native environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np

from hookline.policies import Discrete, MLPPolicy
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition
from hookline.rollout.environments.outcomes import attributed, shortened
from hookline.rollout.errors import LessonError, RolloutError
from hookline.rollout.lessons import Lesson
from hookline.rollout.runners.control_arrays import control_rollout, played_episode
from hookline.rollout.runners.control_policy import check_control_policy
from hookline.rollout.runners.jax_episodes import play_episodes
from hookline.rollout.runners.jax_scan import Copies, committed, scan_rollout, start_copies
from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["EVALUATION_STEP_LIMIT", "JaxRunner"]

EVALUATION_STEP_LIMIT: Final = 100_000
"""An evaluation that has not come to an end after so many steps never will."""


class JaxRunner:
    """Keeps copies of an environment, and scans them."""

    def __init__(self, lesson: Lesson, environment: JaxEnvironment, copies: int, steps: int) -> None:
        self._lesson = lesson
        self._environment = environment
        self._batch = copies
        self._steps = steps
        self._copies: Copies | None = None
        self._where = f"lesson {lesson.lesson_id!r}: environment {environment.name!r}"
        _check_shapes(environment, self._where)
        self._policy = self.default_policy()

    def default_policy(self) -> MLPPolicy:
        return MLPPolicy(self._environment.observation_size, self._environment.actions)

    def check_policy(self, policy: Any) -> None:
        check_control_policy(self._lesson.lesson_id, self._environment.name, policy, self.default_policy())
        self._policy = policy

    def rollout(self, weights: Mapping[str, Any], key: jax.Array) -> Rollout:
        start_key, scan_key = jax.random.split(key)
        with attributed(f"{self._where}, in a rollout"):
            if self._copies is None:
                self._copies = committed(start_copies(self._environment, start_key, self._batch))
            self._copies, record = scan_rollout(
                self._environment,
                self._policy,
                weights,
                self._copies,
                scan_key,
                steps=self._steps,
                max_episode_steps=self._lesson.max_episode_steps,
            )
        # Copies of their own memory: torch and MLX may write into what they take over.
        arrays = {name: np.array(array) for name, array in record.items()}
        returns, lengths = arrays.pop("returns"), arrays.pop("lengths")
        return control_rollout(self._lesson.lesson_id, self._environment.name, arrays, returns, lengths)

    def evaluate(self, weights: Mapping[str, Any], key: jax.Array, asked: EvaluationRequest) -> list[Episode]:
        with attributed(f"{self._where}, in an evaluation"):
            played = play_episodes(
                self._environment,
                self._policy,
                weights,
                key,
                episodes=asked.n_examples,
                recorded=min(asked.replays, asked.n_examples),
                max_episode_steps=self._lesson.max_episode_steps,
                step_limit=EVALUATION_STEP_LIMIT,
                greedy=asked.greedy,
            )
        if (played.faulty_at >= 0).any():
            first = int(np.argmax(played.faulty_at >= 0))
            raise LessonError(
                f"{self._where}, episode {first} of an evaluation, step {played.faulty_at[first]}: "
                "the reward or the observation is not finite"
            )
        if not played.ended.all():
            raise LessonError(
                f"{self._where}, {int((~played.ended).sum())} of {asked.n_examples} episodes did not end in "
                f"{EVALUATION_STEP_LIMIT} steps; give the lesson max_episode_steps"
            )
        episodes = [
            played_episode(self._environment.name, reward, length, truncated=not terminated)
            for reward, length, terminated in zip(
                played.returns.tolist(), played.lengths.tolist(), played.terminated.tolist(), strict=True
            )
        ]
        for index, episode in enumerate(episodes[: asked.replays]):
            length = episode.metadata["length"]
            episode.arrays.update({name: array[:length, index].copy() for name, array in played.record.items()})
        return episodes

    def state_dict(self) -> dict[str, Any] | None:
        if self._copies is None:
            return None
        return {"leaves": [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(self._copies)]}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            self._copies = None
            return
        like = start_copies(self._environment, jax.random.key(0), self._batch)
        leaves, structure = jax.tree.flatten(like)
        saved = [np.asarray(value) for value in state["leaves"]]
        if [value.shape for value in saved] != [leaf.shape for leaf in leaves]:
            raise RolloutError(
                f"lesson {self._lesson.lesson_id!r}: the saved state is not of {self._batch} copies of "
                f"{self._environment.name!r}; restore it with the config that it was saved with"
            )
        restored = [value.astype(leaf.dtype) for value, leaf in zip(saved, leaves, strict=True)]
        self._copies = committed(jax.tree.unflatten(structure, restored))

    def close(self) -> None:
        self._copies = None


def _check_shapes(environment: JaxEnvironment, where: str) -> None:
    """Raise an error when the functions give what a rollout cannot scan. They are traced, and not run."""
    key = jax.random.key(0)
    actions = environment.actions
    action = np.zeros((), np.int32) if isinstance(actions, Discrete) else np.zeros(actions.size, np.float32)
    with attributed(f"{where}, reset"):
        state, obs = jax.eval_shape(environment.reset, key)
    with attributed(f"{where}, step"):
        after = Transition(*jax.eval_shape(environment.step, key, state, action))
    vector = (environment.observation_size,)
    for moment, name, given, shape, kinds in (
        ("reset", "observation", obs, vector, "biuf"),
        ("step", "observation", after.obs, vector, "biuf"),
        ("step", "reward", after.reward, (), "biuf"),
        ("step", "terminated", after.terminated, (), "b"),
        ("step", "truncated", after.truncated, (), "b"),
    ):
        dtype = getattr(given, "dtype", np.dtype(object))
        if getattr(given, "shape", None) != shape or np.dtype(dtype).kind not in kinds:
            wanted = "a bool" if kinds == "b" else f"numbers of shape {shape}"
            raise LessonError(f"{where}, {moment}: {name!r} is {shortened(given)}; it must be {wanted}")
