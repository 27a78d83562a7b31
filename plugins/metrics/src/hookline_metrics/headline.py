"""The few metrics that summarise a run, found by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hookline_metrics.run_reader import RunReader

__all__ = ["LOSSES", "REWARDS", "VALIDATION_LOSSES", "headline", "lesson_scores"]

LOSSES: Final = ("train/loss", "loss", "train_loss")
VALIDATION_LOSSES: Final = ("val_avg_loss", "val/loss", "val_loss")
REWARDS: Final = ("rollout/mean_reward", "rewards/mean_reward", "mean_reward", "reward")
"""Names under which runs record their loss and reward. The first that a run has is used."""

SCORE: Final = "success_rate"


def lesson_scores(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The names of the lessons' success rates, by kind of evaluation and lesson, sorted.

    `eval/addition/success_rate` is the lesson `addition` of the kind `eval`.
    `eval/success_rate`, if there is one too, belongs to no lesson and is left out.
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        *kind, lesson, score = ["", *name.split("/")]
        if score == SCORE and lesson:
            found.setdefault("/".join(part for part in kind if part), {})[lesson] = name
    without_kind = found.pop("", {})
    alone = {lesson: name for lesson, name in without_kind.items() if lesson not in found}
    return {kind: dict(sorted(lessons.items())) for kind, lessons in {**found, "": alone}.items() if lessons}


def headline(run: RunReader) -> dict[str, float]:
    """The latest loss, validation loss, reward, mean success over lessons and steps per second, where recorded."""
    numbers = {}
    for label, names in {"loss": LOSSES, "validation loss": VALIDATION_LOSSES, "reward": REWARDS}.items():
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
    """The kind of evaluation that covers most lessons."""
    return max(kinds.values(), key=len) if kinds else {}
