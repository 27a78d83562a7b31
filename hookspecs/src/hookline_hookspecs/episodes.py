"""What rollouts are made of, and what is said about them: episodes, batches, rollouts, verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Episode", "EpisodeBatch", "Rollout", "Turn", "VerificationReport", "VerificationResult"]


class Turn(NamedTuple):
    """One message of a conversation."""

    role: str = "user"
    """Who speaks: `assistant` for the policy, and `system`, `user` or `tool` for the environment."""
    text: str = ""
    start: int = 0
    """The turn's tokens are `episode.tokens[start:end]`, with what a chat template puts around the text. Messages of
    the environment that come together are encoded together: the last of them has the tokens. A message that the
    policy never read has none."""
    end: int = 0


@dataclass
class Episode:
    """A conversation with a language model, or one episode in a control environment.

    One that is made from turns has its prompt and response from them. The fields from `tokens` to `log_mass` have one
    entry for each token of the conversation.
    """

    prompt: str = ""
    """The text before the policy's first turn."""
    response: str = ""
    """The text of the policy's last turn: what rewards and verifiers read."""
    reference: str | None = None
    """The expected answer, when there is one."""
    reward: float | None = None
    """What the environment or the reward processor gave, None before that."""
    turns: Sequence[Turn] = ()
    """The conversation in order. Empty for a control episode, and where only a prompt and a response are known."""
    tokens: Any = None
    """All tokens of all turns, one after the other: an array of integers, or None."""
    mask: Any = None
    """True for each token that is trained on, which the policy sampled; an array of booleans, or None."""
    logprobs: Any = None
    """The log-probability of each token under the distribution that it was sampled from, with temperature, top-k and
    top-p; 0 for tokens that were not sampled. Of the response's tokens where `tokens` is None."""
    log_mass: Any = None
    """The log of the probability that top-k and top-p kept at each token, 0 where that is all; None without them.
    `logprobs + log_mass` are the log-probabilities before they cut anything off."""
    temperature: float = 1.0
    """What the logits behind `logprobs` were divided by."""
    group: int | None = None
    """The problem that was answered: samples of one problem share it. None where each episode is its own."""
    weights_version: Any = None
    """The version of the weights that made it: one number, or an array of one for each token where new weights came
    in the middle. None where it is not known."""
    arrays: dict[str, Any] = field(default_factory=dict)
    """Observations, actions, rewards and the like of a control episode, by name."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Settings from the problem (target length, keywords) and results (reward, verdicts). A conversation that its
    environment did not end has a `stop_reason`: a limit, or what a plugin said. One whose environment failed has a
    `failure`, which says what happened; such an episode has no reward and is not trained on."""

    def __post_init__(self) -> None:
        turns, self.turns = self.turns, ()
        for turn in turns:
            self.add_turn(turn)

    def add_turn(self, turn: Turn) -> None:
        """Add the next turn. It is part of the prompt, or the response, or a message between two responses."""
        if not self.turns:
            self.prompt = self.response = ""
        if turn.role == "assistant":
            self.response = turn.text
        elif not any(own.role == "assistant" for own in self.turns):
            self.prompt += turn.text
        self.turns = (*self.turns, turn)

    @property
    def ending(self) -> str:
        """Why the conversation ended, to show to people. Empty if its environment ended it as it should."""
        if "failure" in self.metadata:
            return f"failed: the environment {self.metadata['failure']}"
        return f"stopped: {self.metadata['stop_reason']}" if "stop_reason" in self.metadata else ""


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
    """Observations, actions, log-probabilities, rewards, values and ends, by name. Of text only the rewards: all else
    is in the episodes."""
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
