"""Accepts or rejects episodes, and writes the results into their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hookline.rewards.config import IntegratedRewardConfig
from hookline.rewards.features import Column, Flags
from hookline.rewards.verification import FAIL, RESULTS, ROUNDING, CombinedReports, ReportColumn, VerifierDetails
from hookline_hookspecs import EpisodeBatch

__all__ = ["Filter", "add_results", "add_verification"]


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


STEP: Final = 0.1
"""The change of the thresholds per unit of error in the acceptance rate."""


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
