"""What rollouts are made of, and what is said about them: episodes, batches, rollouts, verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Episode", "EpisodeBatch", "Rollout", "VerificationReport", "VerificationResult"]


@dataclass
class Episode:
    """One prompt and one response, or one passage through an environment."""

    prompt: str = ""
    response: str = ""
    reference: str | None = None
    """The expected answer, when there is one."""
    reward: float | None = None
    """What the environment or the reward processor gave, None before that."""
    logprobs: Any = None
    """Log-probability of each response token under the policy that made it: an array, or None."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """Observations, actions, rewards and the like of a control episode, by name."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Per-episode settings (target length, keywords) and findings (reward, verdicts)."""


@dataclass
class EpisodeBatch:
    """The episodes that are rewarded and verified together."""

    episodes: list[Episode] = field(default_factory=list)
    lesson_id: str | None = None
    weights_version: int = 0
    """The version of the weights that made these episodes."""
    step: int = 0
    """The rollout worker's step, or the trainer's where there is no worker."""
    features: Any = None
    """What the reward processor read from the texts, once, for all rewards and verifiers to use."""

    def __len__(self) -> int:
        return len(self.episodes)

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)


@dataclass
class Rollout:
    """What one call of the policy on one lesson produced, as plain arrays and episodes."""

    lesson_id: str | None = None
    weights_version: int = 0
    """The version of the weights that made this rollout."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """Observations, actions, log-probabilities, rewards, values and ends, by name."""
    episodes: list[Episode] = field(default_factory=list)
    stats: dict[str, float] = field(default_factory=dict)
    """Mean reward, lengths, rates, by name."""


class VerificationResult(StrEnum):
    """The verdict of a verifier. A string too, since it goes into metadata that is saved as JSON."""

    PASS = "pass"
    WARNING = "warning"
    FAIL = "fail"


@dataclass
class VerificationReport:
    """What one verifier found in one episode."""

    result: VerificationResult = VerificationResult.PASS
    score: float = 1.0
    """From 0 (worst) to 1."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The measurements behind the verdict, by name."""
    message: str = ""
    """What was found, in a sentence for a person."""
