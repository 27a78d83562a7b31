"""What evaluations say of lessons and categories, as numbers by name.

Of a full evaluation the names are

    eval/LESSON/SCORE               one lesson
    eval_category/CATEGORY/SCORE    the lessons of one category together
    eval/SCORE                      all lessons together

and of a micro evaluation `micro_eval/LESSON/SCORE`. The scores are

    mean_reward         over problems, each with the mean of its samples; a control episode is a problem of its own
    standard_error      of that mean, where there are two problems or more
    success_rate        the share of samples whose reward is above the lesson's `success_above`
    pass@1, pass@k      text lessons: the chance that one of k samples is a success
    episodes            how many were played
    not_applicable      how many of them no checker could judge; they are left out of the rest

Where no episode could be judged there is no rate and no mean, rather than a zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hookline.rollout.curriculum import Lesson
    from hookline_hookspecs import Episode, EvaluationRequest

__all__ = ["SUCCESS_RATE", "LessonScores", "pass_at_k", "score_evaluation", "score_rewards", "success_rates"]

SUCCESS_RATE = "success_rate"


class LessonScores(dict[str, float]):
    """The scores of one lesson by name, as the worker's own hooks name them, and the episodes that they are of."""

    def __init__(self, episodes: Sequence[Episode], success_above: float) -> None:
        super().__init__(score_rewards([episode.reward for episode in episodes], success_above))
        self.episodes = episodes


def score_rewards(rewards: Sequence[float | None], success_above: float) -> dict[str, float]:
    """The scores of one lesson, as the worker's own hooks name them."""
    judged = [reward for reward in rewards if reward is not None]
    scores = {"total_count": float(len(rewards)), "not_applicable_count": float(len(rewards) - len(judged))}
    if judged:
        scores[SUCCESS_RATE] = sum(reward > success_above for reward in judged) / len(judged)
        scores["avg_reward"] = sum(judged) / len(judged)
        scores["min_reward"] = min(judged)
        scores["max_reward"] = max(judged)
    return scores


def score_evaluation(
    request: EvaluationRequest,
    lessons: Mapping[str, Lesson],
    played: Mapping[str, Sequence[Episode]],
    given: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, float]:
    """All scores of an evaluation by name.

    :param played: the episodes of each lesson that was evaluated.
    :param given: the scores of lessons that were evaluated without episodes; they stand as they are.
    """
    problems = {name: list(_problems(episodes, lessons[name])) for name, episodes in played.items()}
    prefix = "eval" if request.kind == "full" else "micro_eval"
    groups = {f"{prefix}/{name}": own for name, own in problems.items()}
    if request.kind == "full":
        for name, own in problems.items():
            category = lessons[name].category
            if category is not None:
                groups.setdefault(f"eval_category/{category}", []).extend(own)
        groups["eval"] = [problem for own in problems.values() for problem in own]
    scores: dict[str, Mapping[str, float]] = {f"{prefix}/{name}": own for name, own in (given or {}).items()}
    scores |= {group: _score(own, request.pass_at) for group, own in groups.items()}
    return {f"{group}/{score}": value for group, own in scores.items() for score, value in own.items()}


def success_rates(scores: Mapping[str, float], lessons: Iterable[str]) -> dict[str, float]:
    """What the scores of a full evaluation say of the success of these lessons; nothing of those not in it."""
    names = {name: f"eval/{name}/{SUCCESS_RATE}" for name in lessons}
    return {lesson: scores[name] for lesson, name in names.items() if name in scores}


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """The chance that among k of these samples, drawn without putting back, there is a success.

    The mean of it over problems is an unbiased estimate of the chance that one of k new samples is a success; the
    share of problems with a success among k samples would be one too, but with more noise.
    """
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


class _Problem(NamedTuple):
    """The samples of one problem, or a single control episode."""

    rewards: list[float]
    """Of the samples that could be judged."""
    successes: int
    episodes: int
    is_text: bool

    @property
    def mean(self) -> float:
        return sum(self.rewards) / len(self.rewards)


def _problems(episodes: Sequence[Episode], lesson: Lesson) -> Iterable[_Problem]:
    groups: defaultdict[int, list[float | None]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        groups[episode.metadata.get("group", index)].append(episode.reward)
    is_text = any("group" in episode.metadata for episode in episodes)
    for rewards in groups.values():
        judged = [reward for reward in rewards if reward is not None]
        successes = sum(reward > lesson.success_above for reward in judged)
        yield _Problem(judged, successes, len(rewards), is_text)


def _score(problems: Sequence[_Problem], pass_at: Sequence[int]) -> dict[str, float]:
    judged = [problem for problem in problems if problem.rewards]
    episodes = sum(problem.episodes for problem in problems)
    samples = sum(len(problem.rewards) for problem in judged)
    scores = {"episodes": float(episodes), "not_applicable": float(episodes - samples)}
    if not judged:
        return scores
    means = [problem.mean for problem in judged]
    mean = scores["mean_reward"] = sum(means) / len(means)
    if len(means) > 1:
        variance = sum((own - mean) ** 2 for own in means) / (len(means) - 1)
        scores["standard_error"] = math.sqrt(variance / len(means))
    scores[SUCCESS_RATE] = sum(problem.successes for problem in judged) / samples
    for k in sorted({1, *pass_at}):
        chances = [
            pass_at_k(len(problem.rewards), problem.successes, k)
            for problem in judged
            if problem.is_text and len(problem.rewards) >= k
        ]
        if chances:
            scores[f"pass@{k}"] = sum(chances) / len(chances)
    return scores
