"""`JaxRunner`: rollouts and evaluations of JAX-native environments, as compiled scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hookline.policies import Discrete, MLPPolicy, actor_jax
from hookline.policies.protocol import Actor, ActorWeights, JaxControlPolicy
from hookline.rollout.curriculum import Lesson
from hookline.rollout.environments.jax_environment import JaxEnvironment, Transition
from hookline.rollout.environments.outcomes import attributed
from hookline.rollout.errors import LessonError, RolloutError
from hookline.rollout.rng import seed_of
from hookline.rollout.runners.control import control_rollout, played_episode
from hookline.rollout.runners.jax_scan import (
    EnvStates,
    committed,
    scan_rollout,
    start_environments,
    step_environments,
    with_time_limit,
    within_bounds,
)
from hookline_hookspecs import Episode, EvaluationRequest, Rollout
from hookline_hookspecs.errors import shortened

__all__ = [
    "EVALUATION_STEP_LIMIT",
    "STRETCH",
    "EpisodeOutcomes",
    "JaxRunner",
    "play_episodes",
    "play_scanned",
    "play_stepwise",
]

EVALUATION_STEP_LIMIT: Final = 100_000
"""An evaluation whose episodes have not ended after this many steps is an error."""
STRETCH: Final = 128
"""Steps in one scan of an evaluation."""
START: Final = 2**32 - 1
"""Folded into the key for initial states. Each stretch folds in its own number."""
ACTIONS: Final = 2**32 - 2
"""Folded into the key for actions of a policy without a JAX forward."""


class EpisodeOutcomes(NamedTuple):
    """The outcome of each episode."""

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    """Whether it ended by termination rather than truncation."""
    ended: np.ndarray
    faulty_at: np.ndarray
    """The first step at which a reward or an observation was not finite, or -1."""
    record: dict[str, np.ndarray]
    """The steps of the first episodes, (steps, episodes) each. Values after an episode's end have no meaning."""


class Playing(NamedTuple):
    """Episodes between two steps. Those that have ended are still stepped until all have, without effect."""

    envs: EnvStates
    terminated: jax.Array
    ended: jax.Array
    faulty_at: jax.Array


PlayOn = Callable[[Playing, np.uint32], tuple[Playing, dict[str, jax.Array]]]
"""Plays the next stretch, given its number. Returns the new state and the recorded steps."""


def play_episodes(
    environment: JaxEnvironment, key: jax.Array, play_on: PlayOn, *, episodes: int, stretch: int, step_limit: int
) -> EpisodeOutcomes:
    """Play episodes until all have ended, or for about `step_limit` steps.

    :param play_on: `play_scanned` or `play_stepwise`, with their keyword arguments bound.
    :param stretch: the number of steps in one call of `play_on`.
    """
    playing = committed(_start(environment, key, episodes))
    records: list[dict[str, jax.Array]] = []
    while len(records) * stretch < step_limit and not np.asarray(playing.ended).all():
        playing, record = play_on(playing, np.uint32(len(records)))
        records.append(record)
    envs, terminated, ended, faulty_at = jax.device_get(playing)
    whole = {name: np.concatenate([np.asarray(own[name]) for own in records]) for name in records[0]}
    return EpisodeOutcomes(envs.returns, envs.lengths, terminated, ended, faulty_at, whole)


@partial(jax.jit, static_argnames=("environment", "episodes"))
def _start(environment: JaxEnvironment, key: jax.Array, episodes: int) -> Playing:
    none = jnp.zeros(episodes, bool)
    envs = start_environments(environment, jax.random.fold_in(key, START), episodes)
    return Playing(envs, none, none, jnp.full(episodes, -1, jnp.int32))


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

    :param recorded: the number of episodes whose observations, actions and rewards are kept.
    """
    episodes = playing.ended.shape[0]
    # Drawn inside jit, because a call of JAX from Python costs more than drawing.
    noise_key, step_key = jax.random.split(jax.random.fold_in(key, stretch))
    noise = None if greedy else actor_jax.noise(policy.actions, noise_key, (STRETCH, episodes))
    step_keys = jax.random.split(step_key, (STRETCH, episodes))

    def step(playing: Playing, drawn: tuple[Any, jax.Array]) -> tuple[Playing, dict[str, jax.Array]]:
        noise, keys = drawn
        outputs, _ = policy.jax_forward(weights, playing.envs.obs)
        if greedy:
            action = actor_jax.greedy(policy.actions, outputs)
        else:
            action = actor_jax.choose(policy.actions, weights, outputs, noise)
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
    """Take one step with the actions of `act`."""
    action = act(np.asarray(playing.envs.obs))
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
    envs, terminated, ended, faulty_at = playing
    after = jax.vmap(environment.step)(keys, envs.state, within_bounds(environment.actions, action))
    lengths = envs.lengths + ~ended
    after = with_time_limit(after, lengths, max_episode_steps)
    returns = envs.returns + jnp.where(ended, 0.0, after.reward)
    happened = {"obs": envs.obs, "actions": action, "rewards": after.reward}
    finite = jnp.isfinite(after.reward) & jnp.isfinite(envs.obs).all(axis=-1)
    faulty_at = jnp.where(finite | ended | (faulty_at >= 0), faulty_at, lengths - 1)
    terminated = jnp.where(ended, terminated, after.terminated)
    ended = ended | after.terminated | after.truncated
    played = Playing(EnvStates(after.state, after.obs, returns, lengths), terminated, ended, faulty_at)
    return played, {name: array[:recorded] for name, array in happened.items()}


class JaxRunner:
    """Keeps several environments. It scans them if the policy has a JAX forward, else it steps them all at once.

    Their state can be saved in both cases.
    """

    plays_text = False
    _actor: Actor

    def __init__(self, lesson: Lesson, environment: JaxEnvironment, count: int, steps: int) -> None:
        self._lesson = lesson
        self._environment = environment
        self._batch = count
        self._steps = steps
        self._envs: EnvStates | None = None
        self._where = f"lesson {lesson.lesson_id!r}: environment {environment.name!r}"
        _check_shapes(environment, self._where)

    def default_policy(self) -> MLPPolicy:
        return MLPPolicy(self._environment.observation_size, self._environment.actions)

    def use_actor(self, actor: Actor) -> None:
        actor.check(self._where, self._environment.observation_size, self._environment.actions)
        self._actor = actor

    def rollout(self, weights: ActorWeights, key: jax.Array, version: int) -> Rollout:
        start_key, scan_key = jax.random.split(key)
        with attributed(f"{self._where}, in a rollout"):
            if self._envs is None:
                self._envs = committed(start_environments(self._environment, start_key, self._batch))
            play = self._scan if self._actor.jax_policy is not None else self._step_by_step
            self._envs, record = play(self._envs, weights, scan_key)
        # Copied, because torch and MLX may write into arrays that share their memory.
        arrays = {name: np.array(array) for name, array in record.items()}
        returns, lengths = arrays.pop("returns"), arrays.pop("lengths")
        return control_rollout(self._lesson.lesson_id, version, self._environment.name, arrays, returns, lengths)

    def _scan(self, envs: EnvStates, weights: ActorWeights, key: jax.Array) -> tuple[EnvStates, Mapping[str, Any]]:
        scanned: tuple[EnvStates, dict[str, Any]] = scan_rollout(
            self._environment,
            self._actor.jax_policy,
            weights,
            envs,
            key,
            steps=self._steps,
            max_episode_steps=self._lesson.max_episode_steps,
        )
        return scanned

    def _step_by_step(
        self, envs: EnvStates, weights: ActorWeights, key: jax.Array
    ) -> tuple[EnvStates, Mapping[str, Any]]:
        action_key, step_key = jax.random.split(key)
        act = self._actor.playing(weights, seed_of(action_key))
        steps: list[dict[str, Any]] = []
        for number in range(self._steps):
            envs, happened = step_environments(
                self._environment,
                envs,
                act(np.asarray(envs.obs)),
                step_key,
                np.uint32(number),
                max_episode_steps=self._lesson.max_episode_steps,
            )
            steps.append(happened)
        record = {name: np.stack([np.asarray(own[name]) for own in steps]) for name in steps[0]}
        record |= self._actor.logprobs_and_values(weights, record, np.asarray(envs.obs))
        del record["final_obs"]
        return envs, record

    def evaluate(self, weights: ActorWeights, key: jax.Array, request: EvaluationRequest) -> list[Episode]:
        with attributed(f"{self._where}, in an evaluation"):
            played = play_episodes(
                self._environment,
                key,
                self._play_on(weights, key, request),
                episodes=request.n_examples,
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
                f"{self._where}, {int((~played.ended).sum())} of {request.n_examples} episodes did not end in "
                f"{EVALUATION_STEP_LIMIT} steps; give the lesson max_episode_steps"
            )
        episodes = [
            played_episode(self._environment.name, reward, length, truncated=not terminated)
            for reward, length, terminated in zip(
                played.returns.tolist(), played.lengths.tolist(), played.terminated.tolist(), strict=True
            )
        ]
        for index, episode in enumerate(episodes[: request.replays]):
            length = episode.metadata["length"]
            episode.arrays.update({name: array[:length, index].copy() for name, array in played.record.items()})
        return episodes

    def _play_on(self, weights: ActorWeights, key: jax.Array, request: EvaluationRequest) -> PlayOn:
        common: dict[str, Any] = {
            "environment": self._environment,
            "key": key,
            "recorded": min(request.replays, request.n_examples),
            "max_episode_steps": self._lesson.max_episode_steps,
        }
        policy = self._actor.jax_policy
        if policy is not None:
            return partial(play_scanned, **common, policy=policy, weights=weights, greedy=request.greedy)
        seed = None if request.greedy else seed_of(jax.random.fold_in(key, ACTIONS))
        return partial(play_stepwise, **common, act=self._actor.playing(weights, seed))

    def state_dict(self) -> dict[str, Any] | None:
        if self._envs is None:
            return None
        return {"leaves": [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(self._envs)]}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            self._envs = None
            return
        like = start_environments(self._environment, jax.random.key(0), self._batch)
        leaves, structure = jax.tree.flatten(like)
        saved = [np.asarray(value) for value in state["leaves"]]
        if [value.shape for value in saved] != [leaf.shape for leaf in leaves]:
            raise RolloutError(
                f"lesson {self._lesson.lesson_id!r}: the saved state is not of {self._batch} environments "
                f"{self._environment.name!r}; restore it with the config that it was saved with"
            )
        restored = [value.astype(leaf.dtype) for value, leaf in zip(saved, leaves, strict=True)]
        self._envs = committed(jax.tree.unflatten(structure, restored))

    def close(self) -> None:
        self._envs = None


def _check_shapes(environment: JaxEnvironment, where: str) -> None:
    """Raise an error if the functions return values that a rollout cannot scan. They are traced, not run."""
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
