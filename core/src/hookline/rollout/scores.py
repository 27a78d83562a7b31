"""What an evaluation says of a lesson, as numbers by name."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["score_rewards"]


def score_rewards(rewards: Sequence[float | None], success_above: float) -> dict[str, float]:
    """The scores of one lesson. Where no episode could be judged there is no rate and no mean, rather than a zero."""
    judged = [reward for reward in rewards if reward is not None]
    scores = {"total_count": float(len(rewards)), "not_applicable_count": float(len(rewards) - len(judged))}
    if judged:
        scores["success_rate"] = sum(reward > success_above for reward in judged) / len(judged)
        scores["avg_reward"] = sum(judged) / len(judged)
        scores["min_reward"] = min(judged)
        scores["max_reward"] = max(judged)
    return scores
