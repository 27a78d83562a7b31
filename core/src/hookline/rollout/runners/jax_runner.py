"""Lessons in JAX-native environments: rollouts and evaluations as compiled scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.policies import Discrete, MLPPolicy, actions_jax
from hookline.policies.protocol import Actor, JaxControlPolicy
from hookline.rollout.curriculum import Lesson
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition
from hookline.rollout.environments.outcomes import attributed, shortened
from hookline.rollout.errors import LessonError, RolloutError
from hookline.rollout.rng import seed_of
from hookline.rollout.runners.control import control_rollout, played_episode
from hookline.rollout.runners.jax_scan import (
    Copies,
    committed,
    scan_rollout,
    start_copies,
    step_copies,
    with_time_limit,
    within_bounds,
)
from hookline.rollout.runners.runner import Weights
from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["EVALUATION_STEP_LIMIT", "STRETCH", "JaxRunner", "Played", "play_episodes", "play_scanned", "play_stepwise"]

STRETCH: Final = 128
"""Steps of one scan."""
START: Final = 2**32 - 1
"""What the states that episodes start from are drawn with; a stretch is drawn with its number."""
ACTIONS: Final = 2**32 - 2
"""What actions are drawn with where they come from elsewhere."""


class Played(NamedTuple):
    """How each episode came out."""

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    """It ended by itself, and was not cut short."""
    ended: np.ndarray
    faulty_at: np.ndarray
    """The step at which a reward or an observation was not finite, -1 where all were."""
    record: dict[str, np.ndarray]
    """What happened in the first episodes, (steps, episodes) each. What is there after an end is of no account."""


class Playing(NamedTuple):
    """Episodes between two steps. Those that have ended go on in vain, until all have."""

    copies: Copies
    terminated: jax.Array
    ended: jax.Array
    faulty_at: jax.Array


PlayOn = Callable[[Playing, np.uint32], tuple[Playing, dict[str, jax.Array]]]
"""Plays some more steps, given their number; returns where they led to, and what happened in them."""


def play_episodes(
    environment: JaxEnvironment, key: jax.Array, play_on: PlayOn, *, episodes: int, stretch: int, step_limit: int
) -> Played:
    """Play so many episodes until all have ended, or for about `step_limit` steps.

    :param play_on: `play_scanned` or `play_stepwise` with all that they need besides.
    :param stretch: how many steps one call of it takes.
    """
    playing = committed(_start(environment, key, episodes))
    records: list[dict[str, jax.Array]] = []
    while len(records) * stretch < step_limit and not np.asarray(playing.ended).all():
        playing, record = play_on(playing, np.uint32(len(records)))
        records.append(record)
    copies, terminated, ended, faulty_at = jax.device_get(playing)
    whole = {name: np.concatenate([np.asarray(own[name]) for own in records]) for name in records[0]}
    return Played(copies.returns, copies.lengths, terminated, ended, faulty_at, whole)


@partial(jax.jit, static_argnames=("environment", "episodes"))
def _start(environment: JaxEnvironment, key: jax.Array, episodes: int) -> Playing:
    none = jnp.zeros(episodes, bool)
    copies = start_copies(environment, jax.random.fold_in(key, START), episodes)
    return Playing(copies, none, none, jnp.full(episodes, -1, jnp.int32))


@partial(jax.jit, static_argnames=("environment", "policy", "recorded", "max_episode_steps", "greedy"))
def play_scanned(
    playing: Playing,
    stretch: np.uint32,
    *,
    environment: JaxEnvironment,
    policy: JaxControlPolicy,
    weights: Mapping[str, Any],
    key: jax.Array,
    recorded: int = 0,
    max_episode_steps: int | None,
    greedy: bool,
) -> tuple[Playing, dict[str, jax.Array]]:
    """Take `STRETCH` steps with the policy compiled in.

    :param recorded: of how many episodes to keep observations, actions and rewards.
    """
    episodes = playing.ended.shape[0]
    # In here, as all that is drawn: each call of JAX from Python costs more than the drawing.
    noise_key, step_key = jax.random.split(jax.random.fold_in(key, stretch))
    noise = None if greedy else actions_jax.noise(policy.actions, noise_key, (STRETCH, episodes))
    step_keys = jax.random.split(step_key, (STRETCH, episodes))

    def step(playing: Playing, chance: tuple[Any, jax.Array]) -> tuple[Playing, dict[str, jax.Array]]:
        noise, keys = chance
        outputs, _ = policy.jax_forward(weights, playing.copies.obs)
        if greedy:
            action = actions_jax.greedy(policy.actions, outputs)
        else:
            action = actions_jax.choose(policy.actions, weights, outputs, noise)
        return _play_step(environment, playing, action, keys, recorded, max_episode_steps)

    return jax.lax.scan(step, playing, (noise, step_keys))


def play_stepwise(
    playing: Playing,
    number: np.uint32,
    *,
    environment: JaxEnvironment,
    act: Callable[[np.ndarray], np.ndarray],
    key: jax.Array,
    recorded: int = 0,
    max_episode_steps: int | None,
) -> tuple[Playing, dict[str, jax.Array]]:
    """Take one step, with actions from elsewhere."""
    action = act(np.asarray(playing.copies.obs))
    taken: tuple[Playing, dict[str, jax.Array]] = _step_once(
        environment, playing, action, key, number, recorded, max_episode_steps
    )
    return taken


@partial(jax.jit, static_argnames=("environment", "recorded", "max_episode_steps"))
def _step_once(
    environment: JaxEnvironment,
    playing: Playing,
    action: jax.Array,
    key: jax.Array,
    number: np.uint32,
    recorded: int,
    max_episode_steps: int | None,
) -> tuple[Playing, dict[str, jax.Array]]:
    keys = jax.random.split(jax.random.fold_in(key, number), playing.ended.shape[0])
    playing, happened = _play_step(environment, playing, action, keys, recorded, max_episode_steps)
    return playing, {name: array[None] for name, array in happened.items()}


def _play_step(
    environment: JaxEnvironment,
    playing: Playing,
    action: jax.Array,
    keys: jax.Array,
    recorded: int,
    max_episode_steps: int | None,
) -> tuple[Playing, dict[str, jax.Array]]:
    copies, terminated, ended, faulty_at = playing
    after = jax.vmap(environment.step)(keys, copies.state, within_bounds(environment.actions, action))
    lengths = copies.lengths + ~ended
    after = with_time_limit(after, lengths, max_episode_steps)
    returns = copies.returns + jnp.where(ended, 0.0, after.reward)
    happened = {"obs": copies.obs, "actions": action, "rewards": after.reward}
    finite = jnp.isfinite(after.reward) & jnp.isfinite(copies.obs).all(axis=-1)
    faulty_at = jnp.where(finite | ended | (faulty_at >= 0), faulty_at, lengths - 1)
    terminated = jnp.where(ended, terminated, after.terminated)
    ended = ended | after.terminated | after.truncated
    played = Playing(Copies(after.state, after.obs, returns, lengths), terminated, ended, faulty_at)
    return played, {name: array[:recorded] for name, array in happened.items()}


EVALUATION_STEP_LIMIT: Final = 100_000
"""An evaluation that has not come to an end after so many steps never will."""


class JaxRunner:
    """Keeps copies of an environment. It scans them where the policy has a JAX forward, else steps all of them at once.

    Either way their state can be saved.
    """

    plays_text = False
    _actor: Actor

    def __init__(self, lesson: Lesson, environment: JaxEnvironment, copies: int, steps: int) -> None:
        self._lesson = lesson
        self._environment = environment
        self._batch = copies
        self._steps = steps
        self._copies: Copies | None = None
        self._where = f"lesson {lesson.lesson_id!r}: environment {environment.name!r}"
        _check_shapes(environment, self._where)

    def default_policy(self) -> MLPPolicy:
        return MLPPolicy(self._environment.observation_size, self._environment.actions)

    def use_actor(self, actor: Actor) -> None:
        actor.check(self._where, self._environment.observation_size, self._environment.actions)
        self._actor = actor

    def rollout(self, weights: Weights, key: jax.Array, version: int) -> Rollout:
        start_key, scan_key = jax.random.split(key)
        with attributed(f"{self._where}, in a rollout"):
            if self._copies is None:
                self._copies = committed(start_copies(self._environment, start_key, self._batch))
            play = self._scan if self._actor.jax_policy is not None else self._step_by_step
            self._copies, record = play(self._copies, weights, scan_key)
        # Copies of their own memory: torch and MLX may write into what they take over.
        arrays = {name: np.array(array) for name, array in record.items()}
        returns, lengths = arrays.pop("returns"), arrays.pop("lengths")
        return control_rollout(self._lesson.lesson_id, version, self._environment.name, arrays, returns, lengths)

    def _scan(self, copies: Copies, weights: Weights, key: jax.Array) -> tuple[Copies, Mapping[str, Any]]:
        scanned: tuple[Copies, dict[str, Any]] = scan_rollout(
            self._environment,
            self._actor.jax_policy,
            weights,
            copies,
            key,
            steps=self._steps,
            max_episode_steps=self._lesson.max_episode_steps,
        )
        return scanned

    def _step_by_step(self, copies: Copies, weights: Weights, key: jax.Array) -> tuple[Copies, Mapping[str, Any]]:
        action_key, step_key = jax.random.split(key)
        act = self._actor.playing(weights, seed_of(action_key))
        steps: list[dict[str, Any]] = []
        for number in range(self._steps):
            copies, happened = step_copies(
                self._environment,
                copies,
                act(np.asarray(copies.obs)),
                step_key,
                np.uint32(number),
                max_episode_steps=self._lesson.max_episode_steps,
            )
            steps.append(happened)
        record = {name: np.stack([np.asarray(own[name]) for own in steps]) for name in steps[0]}
        record |= self._actor.logprobs_and_values(weights, record, np.asarray(copies.obs))
        del record["final_obs"]
        return copies, record

    def evaluate(self, weights: Weights, key: jax.Array, asked: EvaluationRequest) -> list[Episode]:
        with attributed(f"{self._where}, in an evaluation"):
            played = play_episodes(
                self._environment,
                key,
                self._play_on(weights, key, asked),
                episodes=asked.n_examples,
                stretch=1 if self._actor.jax_policy is None else STRETCH,
                step_limit=EVALUATION_STEP_LIMIT,
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

    def _play_on(self, weights: Weights, key: jax.Array, asked: EvaluationRequest) -> PlayOn:
        common: dict[str, Any] = {
            "environment": self._environment,
            "key": key,
            "recorded": min(asked.replays, asked.n_examples),
            "max_episode_steps": self._lesson.max_episode_steps,
        }
        policy = self._actor.jax_policy
        if policy is not None:
            return partial(play_scanned, **common, policy=policy, weights=weights, greedy=asked.greedy)
        seed = None if asked.greedy else seed_of(jax.random.fold_in(key, ACTIONS))
        return partial(play_stepwise, **common, act=self._actor.playing(weights, seed))

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
