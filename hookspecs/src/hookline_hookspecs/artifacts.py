"""Records of checkpoints, replays and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from hookline_hookspecs.episodes import Episode

__all__ = ["CheckpointRecord", "EvalRewardSummary", "EvaluationRequest", "EvaluationResult", "ReplayRecord"]


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint that is durable on disk."""

    path: Path | None = None
    epoch: int = 0
    step: int = 0
    uri: str | None = None
    """Its address, if it was uploaded."""
    size_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """The scores it was saved with. The best checkpoints are kept by one of them."""
    fingerprint: str = ""
    """A hash of its contents, by which ranks check that they restored the same checkpoint."""


@dataclass(frozen=True)
class ReplayRecord:
    """Recorded episodes."""

    path: Path | None = None
    """The JSON Lines file with one episode per line. Its HTML page is beside it."""
    uri: str | None = None
    lesson_id: str | None = None
    """The lesson of the episodes, None if there are several."""
    episodes: int = 0
    """The number of episodes in the file."""
    step: int = 0


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate, and how."""

    kind: Literal["micro", "full"] = "full"
    """`micro` is a short evaluation of the current lesson, `full` covers all lessons."""
    lessons: tuple[str, ...] = ()
    """The lessons to evaluate; empty means all, or the current one for a micro evaluation."""
    n_examples: int = 64
    """Examples or episodes for each lesson."""
    greedy: bool = True
    seed: int = 0
    """The only seed of the evaluation, so that it does not affect training."""
    samples_per_problem: int = 1
    """Responses to each problem of a text lesson; more than one needs `greedy=False`."""
    pass_at: tuple[int, ...] = ()
    """The k of each pass@k to compute, at most `samples_per_problem`. pass@1 is always computed."""
    replays: int = 0
    """How many episodes of each lesson to return in full."""
    held_out: bool = True
    """Use held-out problems, which training never sees, if the lesson has any. False uses training problems, for
    evaluations that steer the run while its held-out problems are kept for the final report."""
    on_workers: bool = False
    """Have the workers of the trainer's source of rollouts play it, if that has any. The trainer waits for them."""


@dataclass(frozen=True)
class EvaluationResult:
    """Scores, and episodes for a replay."""

    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores by name, such as eval/addition/success_rate."""
    episodes: Mapping[str, Sequence[Episode]] = field(default_factory=dict)
    """Some of the evaluated episodes, by lesson."""


@dataclass(frozen=True)
class EvalRewardSummary:
    """The mean rewards of the latest full evaluation."""

    lesson_scores: dict[str, float] = field(default_factory=dict)
    category_scores: dict[str, float] = field(default_factory=dict)
    epoch: int | None = None
    """The epoch that was evaluated, None before the first evaluation."""

    @classmethod
    def of(cls, scores: Mapping[str, float], epoch: int | None = None) -> EvalRewardSummary:
        """The mean rewards in scores by name, such as `state.eval_scores`. Empty if there are none."""
        return cls(_mean_rewards("eval/", scores), _mean_rewards("eval_category/", scores), epoch)

    @property
    def avg_lesson_score(self) -> float | None:
        return _mean(self.lesson_scores)

    @property
    def avg_category_score(self) -> float | None:
        return _mean(self.category_scores)


MEAN_REWARD: Final = "/mean_reward"


def _mean_rewards(prefix: str, scores: Mapping[str, float]) -> dict[str, float]:
    """The mean rewards by the part of the name between `prefix` and `/mean_reward`."""
    return {
        name[len(prefix) : -len(MEAN_REWARD)]: value
        for name, value in scores.items()
        if name.startswith(prefix) and name.endswith(MEAN_REWARD) and len(name) > len(prefix) + len(MEAN_REWARD)
    }


def _mean(scores: Mapping[str, float]) -> float | None:
    return sum(scores.values()) / len(scores) if scores else None
