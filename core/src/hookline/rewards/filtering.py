"""Which episodes are accepted, and what is written into each episode's metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hookline.rewards.config import IntegratedRewardConfig
from hookline.rewards.features import Column, Flags
from hookline.rewards.verification import FAIL, RESULTS, ROUNDING, CombinedReports, ReportColumn, VerifierDetails
from hookline_hookspecs import EpisodeBatch

__all__ = ["Filter", "add_findings", "add_verdicts"]


VERDICT: Final = ("verification_score", "verification_result", "verification_message", "verification_details")


def add_findings(
    batch: EpisodeBatch,
    given: Sequence[Any],
    rewards: Column,
    reports: CombinedReports | None,
    accepted: Flags,
    reasons: Sequence[str],
) -> list[Any]:
    """Put the findings into the metadata of the batch's records, and return the episodes as they were given.

    A record is returned itself. A dictionary stays as it is: a new one is returned, with the findings among its keys.
    """
    metadata = [record.metadata for record in batch.episodes]
    names = ["reward", "accepted", "rejection_reason"]
    for own, reward, passes, reason in zip(metadata, rewards.tolist(), accepted.tolist(), reasons, strict=True):
        own["reward"] = reward
        own["accepted"] = passes
        own["rejection_reason"] = reason
    if reports is not None:
        names += VERDICT
        add_verdicts(metadata, reports)
    return [
        record if episode is record else {**episode, **{name: record.metadata[name] for name in names}}
        for episode, record in zip(given, batch.episodes, strict=True)
    ]


def add_verdicts(metadata: Sequence[dict[str, Any]], reports: CombinedReports) -> None:
    """Put what verifiers found into the episodes' metadata, by the names of `VERDICT`."""
    columns = reports.columns
    results = map(RESULTS.__getitem__, reports.codes.tolist())
    judged = zip(metadata, range(len(metadata)), reports.scores.tolist(), results, reports.messages, strict=True)
    for own, index, score, result, message in judged:
        own["verification_score"] = score
        own["verification_result"] = result
        own["verification_message"] = message
        own["verification_details"] = VerifierDetails(columns, index)


STEP: Final = 0.1
"""How far thresholds move for an acceptance rate that is off by one; a tenth of that for one off by a tenth."""


class Filter:
    """Accepts or rejects. With a target acceptance rate its thresholds move a little after every batch."""

    def __init__(self, config: IntegratedRewardConfig) -> None:
        self._config = config
        self.min_reward_threshold = config.min_reward_threshold
        self.verification_threshold = config.verification_threshold

    def accepts(self, rewards: Column, reports: ReportColumn | None) -> Flags:
        """Which episodes pass: by reward and verification if strict, else by either; never one without a reward."""
        by_reward: Flags = rewards >= self.min_reward_threshold - ROUNDING
        by_reward &= rewards <= self._config.max_reward_threshold + ROUNDING
        if reports is None:
            return by_reward
        by_verification: Flags = (reports.scores >= self.verification_threshold - ROUNDING) & (reports.codes != FAIL)
        if self._config.strict_filtering:
            return by_reward & by_verification
        return (by_reward | by_verification) & ~np.isnan(rewards)

    def reasons(self, rewards: Column, reports: ReportColumn | None, accepted: Flags) -> list[str]:
        """Why each episode was rejected, in words; empty for one that was accepted."""
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
        missed = np.zeros(len(rewards), np.int64)
        for place, flags in enumerate(faults.values()):
            missed |= flags.astype(np.int64) << place
        missed[accepted] = 0
        combinations = missed.tolist()
        wordings = {
            combination: ", ".join(fault for place, fault in enumerate(faults) if combination >> place & 1)
            for combination in set(combinations)
        }
        return [wordings[combination] for combination in combinations]

    def adapt(self, accepted: Flags) -> None:
        """Raise the thresholds when more was accepted than wanted, lower them when less was."""
        target = self._config.target_acceptance_rate
        if target is None or not len(accepted):
            return
        move = STEP * (float(accepted.mean()) - target)
        highest = self._config.max_reward_threshold
        self.min_reward_threshold = min(max(self.min_reward_threshold + move, 0.0), highest)
        self.verification_threshold = min(max(self.verification_threshold + move, 0.0), 1.0)
