"""Quality metrics: what a number of rewarded episodes look like together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hookline.rewards.config import QualityMeasure
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column, Flags
from hookline.rewards.reports import FAIL, RESULTS, Codes
from hookline.rewards.verification import CombinedReports
from hookline_hookspecs import Episode
from hookline_hookspecs.errors import describe_error

__all__ = ["Quality", "join", "measured"]


@dataclass(frozen=True)
class Quality:
    """What is known of episodes that went through the system, a column for each finding."""

    rewards: Column
    accepted: Flags
    verification_scores: Column | None = None
    """None where verification is off, as are the codes."""
    verification_codes: Codes | None = None
    verifier_codes: Mapping[str, Codes] = field(default_factory=dict)
    """Each verifier's results, for the episodes that it applies to."""

    @classmethod
    def of_batch(cls, rewards: Column, accepted: Flags, reports: CombinedReports | None) -> Quality:
        if reports is None:
            return cls(rewards, accepted)
        verdicts = {name: column.codes[~np.isnan(column.scores)] for name, column in reports.columns.items()}
        return cls(rewards, accepted, reports.scores, reports.codes, verdicts)

    @classmethod
    def of_episodes(cls, episodes: Sequence[Any]) -> Quality:
        """From what accepted and rejected episodes carry."""
        findings = [_findings(index, episode) for index, episode in enumerate(episodes)]
        rewards = np.array([found["reward"] for found in findings], np.float64)
        accepted = np.array([found["accepted"] for found in findings], bool)
        verified = [found for found in findings if "verification_result" in found]
        if not verified:
            return cls(rewards, accepted)
        verdicts: dict[str, list[int]] = {}
        for found in verified:
            for name, report in found["verification_details"].items():
                if report["result"] is not None:
                    verdicts.setdefault(name, []).append(RESULTS.index(report["result"]))
        return cls(
            rewards,
            accepted,
            np.array([found["verification_score"] for found in verified], np.float64),
            np.array([RESULTS.index(found["verification_result"]) for found in verified], np.int8),
            {name: np.array(codes, np.int8) for name, codes in verdicts.items()},
        )

    def metrics(self) -> dict[str, float]:
        """Numbers by name. What there is nothing to compute from is left out.

        `episodes`; `mean_reward`, `std_reward`, `min_reward`, `max_reward` and `median_reward` over those that have
        one; `acceptance_rate`; and where there was verification `mean_verification_score`, `pass_count`,
        `warning_count`, `fail_count` and `failure_rate/<verifier>`.
        """
        metrics = {"episodes": float(len(self.rewards))}
        rewards = self.rewards[~np.isnan(self.rewards)]
        if len(rewards):
            metrics |= {
                "mean_reward": float(rewards.mean()),
                "std_reward": float(rewards.std()),
                "min_reward": float(rewards.min()),
                "max_reward": float(rewards.max()),
                "median_reward": float(np.median(rewards)),
            }
        if len(self.accepted):
            metrics["acceptance_rate"] = float(self.accepted.mean())
        if self.verification_scores is not None and self.verification_codes is not None:
            scores = self.verification_scores[~np.isnan(self.verification_scores)]
            if len(scores):
                metrics["mean_verification_score"] = float(scores.mean())
            for code, result in enumerate(RESULTS):
                metrics[f"{result.value}_count"] = float((self.verification_codes == code).sum())
        for name, codes in self.verifier_codes.items():
            if len(codes):
                metrics[f"failure_rate/{name}"] = float((codes == FAIL).mean())
        return metrics


def join(parts: Sequence[Quality]) -> Quality:
    """The quality of several batches together."""
    if len(parts) == 1:
        return parts[0]
    return Quality(
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([part.accepted for part in parts]),
        _joined([part.verification_scores for part in parts]),
        _joined([part.verification_codes for part in parts]),
        {
            name: np.concatenate([part.verifier_codes[name] for part in parts if name in part.verifier_codes])
            for name in dict.fromkeys(name for part in parts for name in part.verifier_codes)
        },
    )


def _joined(columns: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
    known = [column for column in columns if column is not None]
    return np.concatenate(known) if known else None


def measured(measures: Mapping[str, QualityMeasure], episodes: Sequence[Any]) -> dict[str, float]:
    """The user's own measures of some episodes, by name."""
    values: dict[str, float] = {}
    for name, measure in measures.items():
        try:
            values[name] = float(measure(episodes))
        except Exception as error:
            problem = f"quality measure {name!r} failed on {len(episodes)} episodes: {describe_error(error)}"
            raise RewardError(problem) from error
    return values


def _findings(index: int, episode: Any) -> Mapping[str, Any]:
    findings: Mapping[str, Any] = episode.metadata if isinstance(episode, Episode) else episode
    if not isinstance(findings, Mapping) or "accepted" not in findings:
        raise RewardError(
            f"episode {index} has not been through process_episodes: quality metrics are of accepted and rejected ones"
        )
    return findings
