"""Quality metrics: what a number of rewarded episodes look like together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hookline_hookspecs import Episode, VerificationResult

from hookline.rewards.config import QualityMeasure
from hookline.rewards.errors import RewardError

__all__ = ["quality_metrics"]


def quality_metrics(episodes: Sequence[Any], measures: Mapping[str, QualityMeasure]) -> dict[str, float]:
    """Numbers by name, over episodes as the integrated system returns them.

    `episodes`; `mean_reward`, `std_reward`, `min_reward`, `max_reward` and `median_reward` over those that have one;
    `acceptance_rate`; and where there was verification `mean_verification_score`, `pass_count`, `warning_count`,
    `fail_count` and `failure_rate/<verifier>`. Then each of the user's measures under its name. What there is
    nothing to compute from is left out.
    """
    findings = [_findings(index, episode) for index, episode in enumerate(episodes)]
    metrics: dict[str, float] = {"episodes": float(len(findings))}
    rewards = np.array([found["reward"] for found in findings], np.float64)
    rewards = rewards[~np.isnan(rewards)]
    if len(rewards):
        metrics |= {
            "mean_reward": float(rewards.mean()),
            "std_reward": float(rewards.std()),
            "min_reward": float(rewards.min()),
            "max_reward": float(rewards.max()),
            "median_reward": float(np.median(rewards)),
        }
    if findings:
        metrics["acceptance_rate"] = sum(found["accepted"] for found in findings) / len(findings)
    verified = [found for found in findings if "verification_result" in found]
    if verified:
        metrics |= _verification_metrics(verified)
    for name, measure in measures.items():
        metrics[name] = _measured(name, measure, episodes)
    return metrics


def _findings(index: int, episode: Any) -> Mapping[str, Any]:
    findings: Mapping[str, Any] = episode.metadata if isinstance(episode, Episode) else episode
    if not isinstance(findings, Mapping) or "accepted" not in findings:
        raise RewardError(
            f"episode {index} has not been through process_episodes: quality metrics are of accepted and rejected ones"
        )
    return findings


def _verification_metrics(verified: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    scores = [score for found in verified if not math.isnan(score := found["verification_score"])]
    if scores:
        metrics["mean_verification_score"] = sum(scores) / len(scores)
    for result in VerificationResult:
        metrics[f"{result.value}_count"] = float(sum(found["verification_result"] is result for found in verified))
    verdicts: dict[str, list[bool]] = {}
    for found in verified:
        for name, report in found["verification_details"].items():
            if report["result"] is not None:
                verdicts.setdefault(name, []).append(report["result"] == VerificationResult.FAIL)
    return metrics | {f"failure_rate/{name}": sum(fails) / len(fails) for name, fails in verdicts.items()}


def _measured(name: str, measure: QualityMeasure, episodes: Sequence[Any]) -> float:
    try:
        return float(measure(episodes))
    except Exception as error:
        raise RewardError(f"quality measure {name!r} failed on {len(episodes)} episodes: {error!r}") from error
