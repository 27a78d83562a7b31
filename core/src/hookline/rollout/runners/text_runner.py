"""`TextRunner`: draws problems, samples responses with an engine, and scores them with a checker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from hookline.policies import TransformerPolicy
from hookline.policies.protocol import Actor, PolicyError, Tokenizer
from hookline.rollout.config import SamplingConfig
from hookline.rollout.curriculum import Lesson
from hookline.rollout.engines.engine import RolloutEngine
from hookline.rollout.environments.outcomes import attributed, checked_reward
from hookline.rollout.errors import LessonError
from hookline.rollout.text.problems import TextProblem, TextTask
from hookline_hookspecs import Episode, EvaluationRequest, Rollout, Turn

__all__ = ["TextRunner"]


class TextRunner:
    """Samples responses to the problems of one lesson. It has no state between rollouts."""

    plays_text = True

    def __init__(
        self, lesson: Lesson, task: TextTask, tokenizer: Tokenizer, prompts: int, sampling: SamplingConfig
    ) -> None:
        self._lesson = lesson
        self._task = task
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling

    def default_policy(self) -> TransformerPolicy:
        return TransformerPolicy(vocabulary=self._tokenizer.size)

    def use_actor(self, actor: Actor) -> None:
        del actor
        raise PolicyError(
            f"lesson {self._lesson.lesson_id!r} is a text lesson, and others are environments: one policy plays all "
            "lessons of a worker, so they must be of one kind"
        )

    def rollout(self, engine: RolloutEngine, key: jax.Array, version: int) -> Rollout:
        problem_key, sample_key = jax.random.split(key)
        problems = self._draw(problem_key, self._prompts)
        episodes = self._answer(engine, problems, self._sampling, sample_key)
        rewards = np.array([math.nan if e.reward is None else e.reward for e in episodes], np.float32)
        return Rollout(self._lesson.lesson_id, version, {"rewards": rewards}, episodes, _stats(episodes))

    def evaluate(self, engine: RolloutEngine, key: jax.Array, request: EvaluationRequest) -> list[Episode]:
        problem_key, sample_key = jax.random.split(key)
        problems = self._draw(problem_key, request.n_examples, held_out=request.held_out)
        sampling = replace(self._sampling, samples_per_prompt=request.samples_per_problem)
        if request.greedy:
            sampling.temperature = 0.0
        episodes = self._answer(engine, problems, sampling, sample_key)
        for episode in episodes[: request.replays]:
            tokens = episode.tokens.tolist()
            episode.metadata["token_texts"] = [self._tokenizer.decode([token]) for token in tokens]
        return episodes

    def _draw(self, key: jax.Array, count: int, *, held_out: bool = False) -> list[TextProblem]:
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
        with attributed(f"lesson {self._lesson.lesson_id!r}, drawing a problem"):
            return [self._task.draw(generator, held_out=held_out) for _ in range(count)]

    def _answer(
        self, engine: RolloutEngine, problems: Sequence[TextProblem], sampling: SamplingConfig, key: jax.Array
    ) -> list[Episode]:
        """Sample `samples_per_prompt` responses to each problem."""
        prompts = [self._tokenizer.encode_prompt(problem.prompt) for problem in problems]
        longest = max(map(len, prompts))
        if longest > engine.context - self._task.max_new_tokens:
            raise LessonError(
                f"lesson {self._lesson.lesson_id!r}: a prompt has {longest} tokens and a response up to "
                f"{self._task.max_new_tokens}, but the policy's context is {engine.context}"
            )
        generated = engine.generate(
            prompts, sampling, key, max_new_tokens=self._task.max_new_tokens, stop=self._tokenizer.end
        )
        # One array for all episodes, with prompts aligned on the right, so that each episode is a slice of it.
        rows = len(generated.tokens)
        groups = np.repeat(np.arange(len(prompts)), sampling.samples_per_prompt)
        before = np.zeros((len(prompts), longest), generated.tokens.dtype)
        for row, prompt in enumerate(prompts):
            before[row, longest - len(prompt) :] = prompt
        blank = np.zeros((rows, longest), np.float32)
        columns = {
            "tokens": np.concatenate([before[groups], generated.tokens], axis=1),
            "mask": np.concatenate([blank.astype(bool), generated.valid], axis=1),
            "logprobs": np.concatenate([blank, generated.logprobs], axis=1),
        }
        if generated.log_mass is not None:
            columns["log_mass"] = np.concatenate([blank, generated.log_mass], axis=1)
        ends = longest + generated.valid.sum(axis=1)
        episodes = []
        for row, (group, end) in enumerate(zip(groups.tolist(), ends.tolist(), strict=True)):
            read = len(prompts[group])
            own: dict[str, Any] = {name: column[row, longest - read : end] for name, column in columns.items()}
            own |= {"group": group, "temperature": sampling.temperature or 1.0, "weights_version": engine.version}
            episodes.append(self._episode(problems[group], read, own))
        return episodes

    def _episode(self, problem: TextProblem, read: int, sampled: Mapping[str, Any]) -> Episode:
        """:param read: the number of prompt tokens.
        :param sampled: fields of the episode.
        """
        tokens = sampled["tokens"]
        answer = tokens[read:].tolist()
        response = self._tokenizer.decode(answer)
        return Episode(
            turns=(Turn("user", problem.prompt, 0, read), Turn("assistant", response, read, len(tokens))),
            reference=problem.answer or None,
            reward=self._check(problem, response),
            metadata={
                "length": len(answer),
                "truncated": not answer or answer[-1] not in self._tokenizer.end,
                **({} if self._task.target_length is None else {"target_length": self._task.target_length}),
            },
            **sampled,
        )

    def _check(self, problem: TextProblem, response: str) -> float | None:
        where = (
            f"lesson {self._lesson.lesson_id!r}: the checker, for the response {response!r} to {problem.prompt!r} "
            f"(answer {problem.answer!r}), which may return None for a response that it cannot score"
        )
        with attributed(where):
            reward = self._task.checker(problem, response)
        return None if reward is None else checked_reward(reward, lambda: where)

    def state_dict(self) -> dict[str, Any] | None:
        return None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        del state

    def close(self) -> None:
        pass


def _stats(episodes: Sequence[Episode]) -> dict[str, float]:
    judged = [episode.reward for episode in episodes if episode.reward is not None]
    sampled = sum(episode.metadata["length"] for episode in episodes)
    stats = {
        "steps": float(sampled),
        "episodes": float(len(episodes)),
        "mean_length": sampled / len(episodes),
    }
    if judged:
        stats["mean_reward"] = sum(judged) / len(judged)
    return stats
