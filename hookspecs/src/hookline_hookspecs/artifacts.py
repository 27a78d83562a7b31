"""What a run leaves behind and asks for: checkpoints, replays, evaluations and their summary."""

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
    """Where others can fetch it, when it was uploaded."""
    size_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """The scores it was saved with; retention of the best goes by one of them."""
    fingerprint: str = ""
    """Tells its contents from all others, so that processes can say whether they mean the same."""


@dataclass(frozen=True)
class ReplayRecord:
    """Recorded episodes that a person can look at."""

    path: Path | None = None
    """The file with one episode to a line; the page to look at lies beside it."""
    uri: str | None = None
    lesson_id: str | None = None
    """The lesson that was played, None where the file holds several."""
    episodes: int = 0
    """How many episodes the file holds."""
    step: int = 0


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate, and how."""

    kind: Literal["micro", "full"] = "full"
    """`micro` is a glance at the current lesson, `full` covers all lessons."""
    lessons: tuple[str, ...] = ()
    """The lessons to evaluate; empty means all, or the current one for a micro evaluation."""
    n_examples: int = 64
    """Examples or episodes for each lesson."""
    greedy: bool = True
    seed: int = 0
    """Evaluation draws from this seed alone, so that it changes nothing in training."""
    samples_per_problem: int = 1
    """Responses to each problem of a text lesson; more than one needs `greedy=False`."""
    pass_at: tuple[int, ...] = ()
    """Each k for which pass@k is wanted, at most `samples_per_problem`; pass@1 comes unasked."""
    replays: int = 0
    """How many episodes of each lesson are wanted back, with all that happened in them."""
    held_out: bool = True
    """Play problems that training never sees, where a lesson keeps some back; False plays those of training, for what
    decides on the course of a run whose held-out problems are to be reported."""


@dataclass(frozen=True)
class EvaluationResult:
    """Scores, and the episodes that a person may want to look at."""

    scores: Mapping[str, float] = field(default_factory=dict)
    """By name, such as eval/addition/success_rate."""
    episodes: Mapping[str, Sequence[Episode]] = field(default_factory=dict)
    """Some of the episodes that were played, by lesson."""


@dataclass(frozen=True)
class EvalRewardSummary:
    """The mean rewards of the latest full evaluation."""

    lesson_scores: dict[str, float] = field(default_factory=dict)
    category_scores: dict[str, float] = field(default_factory=dict)
    epoch: int | None = None
    """The epoch that was evaluated, None before the first evaluation."""

    @classmethod
    def of(cls, scores: Mapping[str, float], epoch: int | None = None) -> EvalRewardSummary:
        """What scores by name, such as `state.eval_scores`, say of rewards; empty where no evaluation is among them."""
        return cls(_mean_rewards("eval/", scores), _mean_rewards("eval_category/", scores), epoch)

    @property
    def avg_lesson_score(self) -> float | None:
        return _mean(self.lesson_scores)

    @property
    def avg_category_score(self) -> float | None:
        return _mean(self.category_scores)


MEAN_REWARD: Final = "/mean_reward"


def _mean_rewards(prefix: str, scores: Mapping[str, float]) -> dict[str, float]:
    """The mean rewards by what lies between prefix and score."""
    return {
        name[len(prefix) : -len(MEAN_REWARD)]: value
        for name, value in scores.items()
        if name.startswith(prefix) and name.endswith(MEAN_REWARD) and len(name) > len(prefix) + len(MEAN_REWARD)
    }


def _mean(scores: Mapping[str, float]) -> float | None:
    return sum(scores.values()) / len(scores) if scores else None
