"""Which episodes are trained on: by reward, by verification, and by bounds that may follow the data."""

from __future__ import annotations

from typing import Final

import numpy as np

from hookline.rewards.config import IntegratedRewardConfig
from hookline.rewards.features import Column, Flags
from hookline.rewards.reports import FAIL, ROUNDING, ReportColumn

__all__ = ["Filter"]

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

    def adapt(self, accepted: Flags) -> None:
        """Raise the thresholds when more was accepted than wanted, lower them when less was."""
        target = self._config.target_acceptance_rate
        if target is None or not len(accepted):
            return
        move = STEP * (float(accepted.mean()) - target)
        highest = self._config.max_reward_threshold
        self.min_reward_threshold = min(max(self.min_reward_threshold + move, 0.0), highest)
        self.verification_threshold = min(max(self.verification_threshold + move, 0.0), 1.0)
