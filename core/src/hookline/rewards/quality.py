"""Accepts or rejects episodes, writes the results into their metadata, and computes metrics of their quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hookline.rewards.config import IntegratedRewardConfig, QualityMeasure
from hookline.rewards.errors import RewardError
from hookline.rewards.features import Column, Flags
from hookline.rewards.verification import FAIL, RESULTS, ROUNDING, Codes, CombinedReports, ReportColumn, VerifierDetails
from hookline_hookspecs import Episode, EpisodeBatch
from hookline_hookspecs.errors import describe_error

__all__ = ["Filter", "Quality", "add_results", "add_verification", "join", "measured"]
STEP: Final = 0.1
"""The change of the thresholds per unit of error in the acceptance rate."""

VERIFICATION: Final = ("verification_score", "verification_result", "verification_message", "verification_details")


def add_results(
    batch: EpisodeBatch,
    given: Sequence[Any],
    rewards: Column,
    reports: CombinedReports | None,
    accepted: Flags,
    reasons: Sequence[str],
) -> list[Any]:
    """Write the results into the metadata of the batch's records, and return the episodes in their original form.

    They are `reward`, `accepted`, `rejection_reason` and, with verification, the names in `VERIFICATION`. A record is
    returned itself. For a dictionary a new one with these keys is returned; the original is unchanged.
    """
    metadata = [record.metadata for record in batch.episodes]
    names = ["reward", "accepted", "rejection_reason"]
    for own, reward, passes, reason in zip(metadata, rewards.tolist(), accepted.tolist(), reasons, strict=True):
        own["reward"] = reward
        own["accepted"] = passes
        own["rejection_reason"] = reason
    if reports is not None:
        names += VERIFICATION
        add_verification(metadata, reports)
    return [
        record if episode is record else {**episode, **{name: record.metadata[name] for name in names}}
        for episode, record in zip(given, batch.episodes, strict=True)
    ]


def add_verification(metadata: Sequence[dict[str, Any]], reports: CombinedReports) -> None:
    """Write the verifiers' results into the episodes' metadata, under the names in `VERIFICATION`."""
    columns = reports.columns
    results = map(RESULTS.__getitem__, reports.codes.tolist())
    rows = zip(metadata, range(len(metadata)), reports.scores.tolist(), results, reports.messages, strict=True)
    for own, index, score, result, message in rows:
        own["verification_score"] = score
        own["verification_result"] = result
        own["verification_message"] = message
        own["verification_details"] = VerifierDetails(columns, index)


class Filter:
    """Accepts or rejects episodes. With a target acceptance rate, the thresholds adapt after every batch."""

    def __init__(self, config: IntegratedRewardConfig) -> None:
        self._config = config
        self.min_reward_threshold = config.min_reward_threshold
        self.verification_threshold = config.verification_threshold

    def accepts(self, rewards: Column, reports: ReportColumn | None) -> Flags:
        """One flag per episode: whether it is accepted.

        Strict filtering needs both reward and verification to pass, otherwise one is enough. An episode without a
        reward is always rejected.
        """
        by_reward: Flags = rewards >= self.min_reward_threshold - ROUNDING
        by_reward &= rewards <= self._config.max_reward_threshold + ROUNDING
        if reports is None:
            return by_reward
        by_verification: Flags = (reports.scores >= self.verification_threshold - ROUNDING) & (reports.codes != FAIL)
        if self._config.strict_filtering:
            return by_reward & by_verification
        return (by_reward | by_verification) & ~np.isnan(rewards)

    def reasons(self, rewards: Column, reports: ReportColumn | None, accepted: Flags) -> list[str]:
        """Why each episode was rejected; empty for an accepted one."""
        lowest, highest = self.min_reward_threshold, self._config.max_reward_threshold
        faults = {
            "no reward applies": np.isnan(rewards),
            f"the reward is below {lowest:g}": rewards < lowest - ROUNDING,
            f"the reward is above {highest:g}": rewards > highest + ROUNDING,
        }
        if reports is not None:
            reached = reports.scores >= self.verification_threshold - ROUNDING
            faults[f"the verification score is not {self.verification_threshold:g} or more"] = ~reached
            faults["verification fails"] = reports.codes == FAIL
        failed = np.zeros(len(rewards), np.int64)
        for bit, flags in enumerate(faults.values()):
            failed |= flags.astype(np.int64) << bit
        failed[accepted] = 0
        combinations = failed.tolist()
        wordings = {
            combination: ", ".join(fault for bit, fault in enumerate(faults) if combination >> bit & 1)
            for combination in set(combinations)
        }
        return [wordings[combination] for combination in combinations]

    def adapt(self, accepted: Flags) -> None:
        """Raise the thresholds if the acceptance rate is above its target, lower them if it is below."""
        target = self._config.target_acceptance_rate
        if target is None or not len(accepted):
            return
        move = STEP * (float(accepted.mean()) - target)
        highest = self._config.max_reward_threshold
        self.min_reward_threshold = min(max(self.min_reward_threshold + move, 0.0), highest)
        self.verification_threshold = min(max(self.verification_threshold + move, 0.0), 1.0)


@dataclass(frozen=True)
class Quality:
    """The results of processed episodes, as columns."""

    rewards: Column
    accepted: Flags
    verification_scores: Column | None = None
    """None when verification is off, like the codes."""
    verification_codes: Codes | None = None
    verifier_codes: Mapping[str, Codes] = field(default_factory=dict)
    """The results of each verifier, for the episodes that it applies to."""

    @classmethod
    def of_batch(cls, rewards: Column, accepted: Flags, reports: CombinedReports | None) -> Quality:
        if reports is None:
            return cls(rewards, accepted)
        verifier_codes = {name: column.codes[~np.isnan(column.scores)] for name, column in reports.columns.items()}
        return cls(rewards, accepted, reports.scores, reports.codes, verifier_codes)

    @classmethod
    def of_episodes(cls, episodes: Sequence[Any]) -> Quality:
        """The quality of processed episodes, from the results in their metadata."""
        results = [_results(index, episode) for index, episode in enumerate(episodes)]
        rewards = np.array([result["reward"] for result in results], np.float64)
        accepted = np.array([result["accepted"] for result in results], bool)
        verified = [result for result in results if "verification_result" in result]
        if not verified:
            return cls(rewards, accepted)
        verifier_codes: dict[str, list[int]] = {}
        for result in verified:
            for name, report in result["verification_details"].items():
                if report["result"] is not None:
                    verifier_codes.setdefault(name, []).append(RESULTS.index(report["result"]))
        return cls(
            rewards,
            accepted,
            np.array([result["verification_score"] for result in verified], np.float64),
            np.array([RESULTS.index(result["verification_result"]) for result in verified], np.int8),
            {name: np.array(codes, np.int8) for name, codes in verifier_codes.items()},
        )

    def metrics(self) -> dict[str, float]:
        """Metrics by name. A metric without data is left out.

        - `episodes` and `acceptance_rate`.
        - `mean_reward`, `std_reward`, `min_reward`, `max_reward` and `median_reward`, over episodes with a reward.
        - With verification: `mean_verification_score`, `pass_count`, `warning_count`, `fail_count` and
          `failure_rate/<verifier>`.
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
    """The values of the user's quality measures, by name."""
    values: dict[str, float] = {}
    for name, measure in measures.items():
        try:
            values[name] = float(measure(episodes))
        except Exception as error:
            problem = f"quality measure {name!r} failed on {len(episodes)} episodes: {describe_error(error)}"
            raise RewardError(problem) from error
    return values


def _results(index: int, episode: Any) -> Mapping[str, Any]:
    results: Mapping[str, Any] = episode.metadata if isinstance(episode, Episode) else episode
    if not isinstance(results, Mapping) or "accepted" not in results:
        raise RewardError(
            f"episode {index} was not processed: quality metrics need episodes that process_episodes returned"
        )
    return results
