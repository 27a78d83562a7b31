"""The scores of an evaluation, by name:

    KIND/LESSON/SCORE               one lesson
    KIND_category/CATEGORY/SCORE    the lessons of one category together, in an evaluation of all lessons
    KIND/SCORE                      all lessons together, in an evaluation of all lessons

KIND is `eval` for a full evaluation and `micro_eval` for a micro evaluation. The worker's `evaluate(eval_type=...)` can
replace it, for example with `warm_start`. The scores are

    mean_reward         over problems, each with the mean of its samples; each control episode counts as a problem
    standard_error      of that mean, where there are two problems or more
    success_rate        the share of samples whose reward is above the lesson's `success_above`
    pass@1, pass@k      text lessons: the probability that one of k samples is a success
    episodes            how many were played
    not_applicable      how many of them have no reward; the other scores leave them out

If no episode has a reward, the scores have no mean and no rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hookline.rollout.curriculum import Lesson
    from hookline_hookspecs import Episode, EvaluationRequest

__all__ = ["SUCCESS_RATE", "LessonScores", "pass_at_k", "score_evaluation", "success_rates"]

SUCCESS_RATE = "success_rate"


class LessonScores(dict[str, float]):
    """The scores of one lesson by name, with its episodes."""

    def __init__(self, episodes: Sequence[Episode], success_above: float, pass_at: Sequence[int] = ()) -> None:
        self.problems = list(_problems(episodes, success_above))
        super().__init__(_score(self.problems, pass_at))
        self.episodes = episodes


def score_evaluation(
    request: EvaluationRequest,
    lessons: Mapping[str, Lesson],
    evaluated: Mapping[str, Mapping[str, float]],
    kind: str | None = None,
) -> dict[str, float]:
    """All scores of an evaluation by name.

    :param evaluated: the scores of each lesson. Plain mappings are kept as they are, and count in no category.
    :param kind: the first part of the names. None for the request's kind.
    """
    kind = kind or ("eval" if request.kind == "full" else "micro_eval")
    scores = {f"{kind}/{name}": own for name, own in evaluated.items()}
    if request.kind == "full":
        groups: defaultdict[str, list[_Problem]] = defaultdict(list)
        for name, own in evaluated.items():
            if isinstance(own, LessonScores):
                if lessons[name].category is not None:
                    groups[f"{kind}_category/{lessons[name].category}"] += own.problems
                groups[kind] += own.problems
        scores |= {group: _score(problems, request.pass_at) for group, problems in groups.items()}
    return {f"{group}/{score}": value for group, own in scores.items() for score, value in own.items()}


def success_rates(scores: Mapping[str, float], lessons: Iterable[str], kind: str = "eval") -> dict[str, float]:
    """The success rates of those of these lessons that were evaluated."""
    names = {name: f"{kind}/{name}/{SUCCESS_RATE}" for name in lessons}
    return {lesson: scores[name] for lesson, name in names.items() if name in scores}


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """The probability that k of these samples, drawn without replacement, include a success.

    Its mean over problems is an unbiased estimate of the probability that k new samples include a success. Counting
    the problems with a success among k samples is unbiased too, but has more variance.
    """
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


class _Problem(NamedTuple):
    """The samples of one problem, or a single control episode."""

    rewards: list[float]
    """The rewards of the samples that have one."""
    successes: int
    episodes: int
    is_text: bool

    @property
    def mean(self) -> float:
        return sum(self.rewards) / len(self.rewards)


def _problems(episodes: Sequence[Episode], success_above: float) -> Iterable[_Problem]:
    groups: defaultdict[int, list[float | None]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        groups[index if episode.group is None else episode.group].append(episode.reward)
    is_text = any(episode.group is not None for episode in episodes)
    for rewards in groups.values():
        judged = [reward for reward in rewards if reward is not None]
        successes = sum(reward > success_above for reward in judged)
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
        estimates = [
            pass_at_k(len(problem.rewards), problem.successes, k)
            for problem in judged
            if problem.is_text and len(problem.rewards) >= k
        ]
        if estimates:
            scores[f"pass@{k}"] = sum(estimates) / len(estimates)
    return scores
