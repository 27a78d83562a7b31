"""Text lessons: problems are drawn, responses sampled in one scan, and a checker says what each is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from hookline.policies import TransformerPolicy
from hookline.policies.protocol import Actor, JaxTextPolicy, PolicyError, missing_methods
from hookline.rollout.config import SamplingConfig
from hookline.rollout.curriculum import Lesson
from hookline.rollout.environments.outcomes import attributed, checked_reward
from hookline.rollout.errors import LessonError
from hookline.rollout.text.sampling import sample
from hookline.rollout.text.task import CharacterTokenizer, TextProblem, TextTask
from hookline_hookspecs import Episode, EvaluationRequest, Rollout

__all__ = ["TextRunner"]

PROMPT_GRAIN: Final = 8
"""Prompts are padded to a multiple of so many tokens: every new length is compiled anew."""


class TextRunner:
    """Samples responses to the problems of one lesson. It keeps nothing between rollouts."""

    plays_text = True

    def __init__(
        self, lesson: Lesson, task: TextTask, tokenizer: CharacterTokenizer, prompts: int, sampling: SamplingConfig
    ) -> None:
        self._lesson = lesson
        self._task = task
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling
        self._policy: JaxTextPolicy = self.default_policy()

    def default_policy(self) -> TransformerPolicy:
        return TransformerPolicy(vocabulary=self._tokenizer.size)

    def use_actor(self, actor: Actor) -> None:
        policy, where = actor.policy, f"lesson {self._lesson.lesson_id!r}"
        missing = missing_methods(policy, JaxTextPolicy)
        if missing:
            raise PolicyError(
                f"{where} is a text lesson and needs a policy with {'() and '.join(missing)}(), and "
                f"{type(policy).__name__} has none: give a TransformerPolicy, or a specification with a JAX forward"
            )
        if policy.vocabulary != self._tokenizer.size:
            raise PolicyError(
                f"{where}: the tokenizer has {self._tokenizer.size} tokens, the policy {policy.vocabulary}"
            )
        self._policy = policy

    def rollout(self, weights: Mapping[str, Any], key: jax.Array) -> Rollout:
        problem_key, sample_key = jax.random.split(key)
        problems = self._draw(problem_key, self._prompts)
        arrays = self._sample(problems, self._sampling.samples_per_prompt, weights, sample_key, greedy=False)
        episodes = self._episodes(problems, arrays)
        arrays["rewards"] = np.array([math.nan if e.reward is None else e.reward for e in episodes], np.float32)
        return Rollout(
            lesson_id=self._lesson.lesson_id, arrays=arrays, episodes=episodes, stats=_stats(arrays, episodes)
        )

    def evaluate(self, weights: Mapping[str, Any], key: jax.Array, asked: EvaluationRequest) -> list[Episode]:
        problem_key, sample_key = jax.random.split(key)
        problems = self._draw(problem_key, asked.n_examples, held_out=asked.held_out)
        arrays = self._sample(problems, asked.samples_per_problem, weights, sample_key, greedy=asked.greedy)
        episodes = self._episodes(problems, arrays)
        for episode in episodes[: asked.replays]:
            tokens = episode.arrays["tokens"].tolist()
            episode.metadata["token_texts"] = [self._tokenizer.decode([token]) for token in tokens]
        return episodes

    def _draw(self, key: jax.Array, count: int, *, held_out: bool = False) -> list[TextProblem]:
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
        with attributed(f"lesson {self._lesson.lesson_id!r}, drawing a problem"):
            return [self._task.draw(generator, held_out=held_out) for _ in range(count)]

    def _sample(
        self,
        problems: Sequence[TextProblem],
        samples: int,
        weights: Mapping[str, Any],
        key: jax.Array,
        *,
        greedy: bool,
    ) -> dict[str, np.ndarray]:
        """So many responses to each problem, with their prompts and groups: one row for each response."""
        prompts = [self._tokenizer.encode(problem.prompt) for problem in problems]
        room = self._policy.context - self._task.max_new_tokens
        longest = max(map(len, prompts))
        if longest > room:
            raise LessonError(
                f"lesson {self._lesson.lesson_id!r}: a prompt has {longest} tokens and a response up to "
                f"{self._task.max_new_tokens}, but the policy's context is {self._policy.context}"
            )
        length = min(room, -(-max(longest, 1) // PROMPT_GRAIN) * PROMPT_GRAIN)
        tokens = np.full((len(prompts), length), self._tokenizer.pad, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, length - len(prompt) :] = prompt
        prompt_valid = tokens != self._tokenizer.pad
        sampled = sample(
            self._policy,
            weights,
            tokens,
            prompt_valid,
            key,
            self._sampling.temperature,
            samples=samples,
            new_tokens=self._task.max_new_tokens,
            end=self._tokenizer.end,
            pad=self._tokenizer.pad,
            top_k=self._sampling.top_k,
            greedy=greedy,
        )
        arrays = {name: np.array(array) for name, array in sampled._asdict().items()}
        groups = np.repeat(np.arange(len(problems), dtype=np.int32), samples)
        return {"prompts": tokens[groups], "prompt_valid": prompt_valid[groups], **arrays, "groups": groups}

    def _episodes(self, problems: Sequence[TextProblem], arrays: Mapping[str, np.ndarray]) -> list[Episode]:
        groups = arrays["groups"].tolist()
        return [self._episode(problems[group], group, arrays, row) for row, group in enumerate(groups)]

    def _episode(self, problem: TextProblem, group: int, arrays: Mapping[str, np.ndarray], row: int) -> Episode:
        length = int(arrays["valid"][row].sum())
        tokens = arrays["tokens"][row, :length]
        response = self._tokenizer.decode(tokens.tolist())
        return Episode(
            prompt=problem.prompt,
            response=response,
            reference=problem.answer or None,
            reward=self._check(problem, response),
            logprobs=arrays["logprobs"][row, :length],
            arrays={"prompt_tokens": arrays["prompts"][row][arrays["prompt_valid"][row]], "tokens": tokens},
            metadata={
                "group": group,
                "length": length,
                "truncated": self._tokenizer.end not in tokens,
                **({} if self._task.target_length is None else {"target_length": self._task.target_length}),
            },
        )

    def _check(self, problem: TextProblem, response: str) -> float | None:
        where = (
            f"lesson {self._lesson.lesson_id!r}: the checker, for the response {response!r} to {problem.prompt!r} "
            f"(answer {problem.answer!r}), which may give None for what it cannot judge"
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


def _stats(arrays: Mapping[str, np.ndarray], episodes: Sequence[Episode]) -> dict[str, float]:
    judged = [episode.reward for episode in episodes if episode.reward is not None]
    stats = {
        "steps": float(arrays["valid"].sum()),
        "episodes": float(len(episodes)),
        "mean_length": float(arrays["valid"].sum(axis=1).mean()),
    }
    if judged:
        stats["mean_reward"] = sum(judged) / len(judged)
    return stats
