"""`TextRunner`: plays conversations between an environment and the policy, whose responses an engine generates.

All conversations of a rollout are played side by side. In each round the engine generates, in one call, a response in
every conversation that waits for one. The environments then answer in threads. A round goes on without those that have
not answered after `Limits.patience` seconds. They join the next round in which they are answered.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from hookline.errors import did_you_mean
from hookline.policies import TransformerPolicy
from hookline.policies.protocol import Actor, PolicyError, Tokenizer
from hookline.rollout.config import SamplingConfig
from hookline.rollout.curriculum import Lesson
from hookline.rollout.engines.engine import RolloutEngine
from hookline.rollout.environments.outcomes import attributed
from hookline.rollout.errors import CurriculumError, LessonError
from hookline.rollout.text.answers import Answer, Answers, NoAnswerError
from hookline.rollout.text.environment import Limits, TextEnvironment, TextProblem
from hookline.rollout.text.open_episode import Announce, Failure, OpenEpisode, Response, Setting
from hookline_hookspecs import Episode, EvaluationRequest, Rollout
from hookline_hookspecs.errors import describe_error, shortened

__all__ = ["TextRunner"]

logger = logging.getLogger("hookline.rollout")


class TextRunner:
    """Plays one text lesson. Its rollouts do not depend on each other.

    :param prompts: the number of problems in a rollout.
    :param announce: tells plugins of each turn of a rollout.
    """

    plays_text = True

    def __init__(
        self,
        lesson: Lesson,
        environment: TextEnvironment,
        tokenizer: Tokenizer,
        prompts: int,
        sampling: SamplingConfig,
        announce: Announce | None = None,
    ) -> None:
        self._lesson = lesson
        self._environment = environment
        self._limits = _limits_of(lesson, environment)
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling
        self._announce = announce
        self._has_warned = False
        self._has_read = False
        """Whether the policy could read all that the environment said, in any episode so far."""

    def default_policy(self) -> TransformerPolicy:
        return TransformerPolicy(vocabulary=self._tokenizer.size)

    def use_actor(self, actor: Actor) -> None:
        del actor
        raise PolicyError(
            f"lesson {self._lesson.lesson_id!r} is a text lesson, and others are environments: one policy plays all "
            "lessons of a worker, so they must be of one kind"
        )

    def rollout(self, engine: RolloutEngine, key: jax.Array, version: int) -> Rollout:
        episodes = self._play(engine, key, self._prompts, self._sampling, announce=self._announce)
        rewards = np.array([math.nan if e.reward is None else e.reward for e in episodes], np.float32)
        return Rollout(self._lesson.lesson_id, version, {"rewards": rewards}, episodes, _stats(episodes))

    def evaluate(self, engine: RolloutEngine, key: jax.Array, request: EvaluationRequest) -> list[Episode]:
        sampling = replace(self._sampling, samples_per_prompt=request.samples_per_problem)
        if request.greedy:
            sampling.temperature = 0.0
        episodes = self._play(engine, key, request.n_examples, sampling, held_out=request.held_out)
        for episode in episodes[: request.replays]:
            tokens = episode.tokens.tolist()
            episode.metadata["token_texts"] = [self._tokenizer.decode([token]) for token in tokens]
        return episodes

    def _play(
        self,
        engine: RolloutEngine,
        key: jax.Array,
        count: int,
        sampling: SamplingConfig,
        *,
        held_out: bool = False,
        announce: Announce | None = None,
    ) -> list[Episode]:
        """Play `samples_per_prompt` conversations about each of `count` problems."""
        problem_key, sample_key = jax.random.split(key)
        context = engine.context if self._limits.max_tokens is None else min(engine.context, self._limits.max_tokens)
        setting = Setting(self._environment, self._limits, self._tokenizer, context, announce)
        playing = [
            OpenEpisode(setting, problem, group)
            for group, problem in enumerate(self._draw(problem_key, count, held_out))
            for _ in range(sampling.samples_per_prompt)
        ]
        self._converse(engine, playing, sampling, sample_key)
        self._check_readable(playing)
        episodes = [own.closed(sampling.temperature or 1.0, engine.version) for own in playing]
        self._warn_of_failures(episodes)
        return episodes

    def _draw(self, key: jax.Array, count: int, held_out: bool) -> list[TextProblem | Failure]:
        """Draw problems. In the place of one that could not be drawn is the reason."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
        # One after the other, because they share the rng.
        answers = Answers[int](self._limits.seconds, in_order=True)
        for number in range(count):
            answers.ask(number, partial(self._environment.draw, rng, held_out=held_out))
        return [_drawn(answer) for _, answer in sorted(answers.collect(), key=itemgetter(0))]

    def _converse(
        self, engine: RolloutEngine, playing: Sequence[OpenEpisode], sampling: SamplingConfig, key: jax.Array
    ) -> None:
        """Play all conversations to their ends."""
        places = {episode: place for place, episode in enumerate(playing)}
        answers = Answers[OpenEpisode](self._limits.seconds)
        turn = 0
        while _ask(answers, playing):
            # In their order, so that nothing depends on which answer came first.
            for episode, answer in sorted(answers.collect(self._limits.patience), key=lambda own: places[own[0]]):
                episode.take(answer)
            ready = [episode for episode in playing if episode.is_ready]
            if ready:
                self._respond(engine, ready, sampling, jax.random.fold_in(key, turn) if turn else key)
                turn += 1

    def _respond(
        self, engine: RolloutEngine, ready: Sequence[OpenEpisode], sampling: SamplingConfig, key: jax.Array
    ) -> None:
        """Generate a response in each of these conversations."""
        prompts = [episode.tokens for episode in ready]
        samples = sampling.samples_per_prompt
        groups = [prompts[start : start + samples] for start in range(0, len(prompts), samples)]
        is_start = not any(episode.responses for episode in ready)
        if is_start and all(len(group) == samples and group.count(group[0]) == samples for group in groups):
            prompts = [group[0] for group in groups]  # the engine reads each of them once
        else:
            samples = 1
        generated = engine.generate(
            prompts,
            replace(sampling, samples_per_prompt=samples),
            key,
            max_new_tokens=self._limits.max_new_tokens,
            stop=self._tokenizer.end,
        )
        sizes = generated.valid.sum(axis=1).tolist()
        for row, (episode, size) in enumerate(zip(ready, sizes, strict=True)):
            log_mass = None if generated.log_mass is None else generated.log_mass[row, :size]
            tokens, logprobs = generated.tokens[row, :size], generated.logprobs[row, :size]
            episode.respond(Response(tokens, logprobs, log_mass, engine.version))

    def _check_readable(self, played: Sequence[OpenEpisode]) -> None:
        """Raise an error if no episode can be read from the beginning on: then the config is wrong."""
        self._has_read = self._has_read or any(own.tokens and own.unreadable is None for own in played)
        unreadable = [own.unreadable for own in played if own.unreadable is not None]
        if unreadable and len(unreadable) == len(played) and not self._has_read:
            raise LessonError(
                f"lesson {self._lesson.lesson_id!r}: the policy can read no episode; in the first, the environment "
                f"{unreadable[0]}"
            )

    def _warn_of_failures(self, episodes: Sequence[Episode]) -> None:
        failures = [episode.metadata["failure"] for episode in episodes if "failure" in episode.metadata]
        if failures and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "lesson %r: the environment of %d of %d episodes failed, the first because it %s. Such episodes have "
                "no reward and are not trained on. Further ones are counted in rollout/failed",
                self._lesson.lesson_id,
                len(failures),
                len(episodes),
                failures[0],
            )

    def state_dict(self) -> dict[str, Any] | None:
        return None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        del state

    def close(self) -> None:
        close = getattr(self._environment, "close", None)
        if close is not None:
            with attributed(f"lesson {self._lesson.lesson_id!r}, closing its environment"):
                close()


def _limits_of(lesson: Lesson, environment: TextEnvironment) -> Limits:
    """The environment's limits with those that the lesson changes."""
    where, own, known = f"lesson {lesson.lesson_id!r}", environment.limits, [field.name for field in fields(Limits)]
    if not isinstance(own, Limits):
        raise CurriculumError(f"{where}: the limits of its environment are {shortened(own)}; they must be Limits(...)")
    for name in lesson.limits:
        if name not in known:
            raise CurriculumError(f"{where}: there is no limit {name!r}{did_you_mean(name, known)}")
    return replace(own, **lesson.limits)


def _drawn(answer: Answer) -> TextProblem | Failure:
    problem = answer.value
    if isinstance(answer.error, NoAnswerError):
        return Failure(f"{answer.error} when it drew a problem")
    if answer.error is not None:
        return Failure(f"raised {describe_error(answer.error)} when it drew a problem")
    if not isinstance(problem, TextProblem):
        return Failure(f"drew {shortened(problem)}, not a TextProblem")
    if not isinstance(problem.answer, str | None):
        return Failure(f"drew a problem with the answer {shortened(problem.answer)}, which must be a text")
    if not isinstance(problem.metadata, Mapping | None):
        return Failure(f"drew a problem with the metadata {shortened(problem.metadata)}, which must be a dictionary")
    return problem


def _ask(answers: Answers[OpenEpisode], playing: Sequence[OpenEpisode]) -> bool:
    """Ask the questions of these episodes. Returns whether any is open."""
    for episode in playing:
        if episode.question is not None:
            question, episode.question = episode.question, None
            answers.ask(episode, question)
    return bool(answers.open)


def _stats(episodes: Sequence[Episode]) -> dict[str, float]:
    judged = [episode.reward for episode in episodes if episode.reward is not None]
    sampled = sum(episode.metadata["length"] for episode in episodes)
    responses = sum(turn.role == "assistant" for episode in episodes for turn in episode.turns)
    stats = {
        "steps": float(sampled),
        "episodes": float(len(episodes)),
        "failed": float(sum("failure" in episode.metadata for episode in episodes)),
        "mean_length": sampled / len(episodes),
        "mean_turns": responses / len(episodes),
    }
    if judged:
        stats["mean_reward"] = sum(judged) / len(judged)
    return stats
