"""The few numbers that a run is known by, found by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hookline_metrics.reading import RunReader

__all__ = ["LOSSES", "REWARDS", "VALIDATION_LOSSES", "headline", "lesson_scores"]

LOSSES: Final = ("train/loss", "loss", "train_loss")
VALIDATION_LOSSES: Final = ("val_avg_loss", "val/loss", "val_loss")
REWARDS: Final = ("rollout/mean_reward", "rewards/mean_reward", "mean_reward", "reward")
"""What goes by these names is the loss or the reward of a run; the first that is there counts."""

SCORE: Final = "success_rate"


def lesson_scores(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The metrics that are success rates of lessons, by kind of evaluation and lesson, in the order of their names.

    `eval/addition/success_rate` is the lesson `addition` of the kind `eval`, and
    `eval/success_rate` beside it is of no lesson.
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        *kind, lesson, score = ["", *name.split("/")]
        if score == SCORE and lesson:
            found.setdefault("/".join(part for part in kind if part), {})[lesson] = name
    of_no_kind = found.pop("", {})
    alone = {lesson: name for lesson, name in of_no_kind.items() if lesson not in found}
    return {kind: dict(sorted(lessons.items())) for kind, lessons in {**found, "": alone}.items() if lessons}


def headline(run: RunReader) -> dict[str, float]:
    """The loss, the reward, the mean success over lessons and the pace, of those there are."""
    numbers = {}
    wanted = {"loss": LOSSES, "validation loss": VALIDATION_LOSSES, "reward": REWARDS}
    for label, names in wanted.items():
        value = next((run.last(name) for name in names if name in run.names), None)
        if value is not None:
            numbers[label] = value
    rates = _widest(lesson_scores(run.names))
    values = [value for value in map(run.last, rates.values()) if value is not None]
    if values:
        numbers["success"] = sum(values) / len(values)
    rate = run.last("rate/steps_per_second")
    if rate is not None:
        numbers["steps/s"] = rate
    return numbers


def _widest(kinds: dict[str, dict[str, str]]) -> dict[str, str]:
    """Of several kinds of evaluation the one that covers most lessons; a glance at one of them says less."""
    return max(kinds.values(), key=len) if kinds else {}
