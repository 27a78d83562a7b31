"""`TextEnvironment`: a conversation with the policy, for one turn or many.

An environment has limits and two methods. `draw` draws a problem. `converse` is a generator that plays one conversation
about it: each `yield` gives messages to the policy and returns its response, and `return` ends the conversation with
the reward.

    class GuessTheNumber:
        limits = Limits(max_turns=6, max_new_tokens=4)

        def draw(self, rng, *, held_out=False):
            return TextProblem(answer=str(rng.integers(1, 100)))

        def converse(self, problem):
            number = int(problem.answer)
            response = yield "A number from 1 to 99. Which?"
            while response != problem.answer:
                guess = int(response) if response.isdecimal() else 0
                response = yield "more" if guess < number else "less"
            return 1.0

A string is one message of the user. A list of turns has other roles: `[Turn("system", ...), Turn("user", ...)]`, or
`[Turn("tool", result)]` for the result of a tool. `return None` says that the conversation cannot be scored: then it is
trained on only if a reward processor has other rewards for it.

- Several conversations about one problem are a group of GRPO. They run at the same time in different threads. What
  they share needs a lock. Randomness in a conversation comes from a seed in the problem, so that a run can be repeated.
- When a limit ends the conversation, `LimitReached` is raised at the `yield`. Catch it to return a reward for what was
  achieved. Otherwise the reward is 0.
- When the conversation raises anything else, does not answer in time, or yields something else than messages that the
  policy can read, the episode ends as a failure, which is counted in `rollout/failed` and not trained on. The run goes
  on.
- A `finally` runs when the conversation ends in any other way, such as by a plugin.
- A method `close()`, if there is one, is called at the end of the run.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hookline.rollout.errors import CurriculumError
from hookline_hookspecs import Turn

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Conversation", "LimitReached", "Limits", "Messages", "TextEnvironment", "TextProblem"]


class TextProblem(NamedTuple):
    """What one or more conversations are about."""

    prompt: str = ""
    answer: str = ""
    """The expected answer, if there is one."""
    metadata: Mapping[str, Any] | None = None
    """Other data, for the environment. It is copied to the metadata of each episode, where rewards, verifiers and
    replays find it, so it should be small."""


@dataclass(frozen=True)
class Limits:
    """What a conversation may take."""

    max_turns: int = 1
    """Responses of the policy."""
    max_new_tokens: int = 16
    """Tokens of one response, including its end token."""
    max_tokens: int | None = None
    """Tokens of the whole conversation. None for the context of the policy. A conversation ends when there is no room
    for `max_new_tokens` more."""
    seconds: float = 60.0
    """For each answer of the environment, and for drawing each problem."""
    patience: float = 1.0
    """Seconds after which the policy responds to those conversations that are answered. The others join when they are
    answered. While all answers come within this time, a run can be repeated bit for bit."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_new_tokens", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CurriculumError(f"limits: {name} must be at least 1, got {value!r}")
        for name in ("seconds", "patience"):
            if getattr(self, name) <= 0:
                raise CurriculumError(f"limits: {name} must be greater than 0, got {getattr(self, name)!r}")


class LimitReached(Exception):  # noqa: N818 - not an error
    """Raised in a conversation that has reached a limit, `max_turns` or `max_tokens`."""


Messages = str | Sequence[Turn]
"""What the environment says: a message of the user, or turns with the roles `system`, `user` or `tool`."""

Conversation = Generator[Messages, str, float | None]
"""Yields messages, is sent responses, and returns the reward, or None if it cannot be scored."""


@runtime_checkable
class TextEnvironment(Protocol):
    """Draws problems, and converses with the policy about them."""

    @property
    def limits(self) -> Limits: ...

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        """Draw a random problem.

        :param held_out: one that is kept for evaluations, if the environment has such problems.
        """

    def converse(self, problem: TextProblem) -> Conversation:
        """Play one conversation about a problem."""
