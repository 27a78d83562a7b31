"""`OpenEpisode`: one conversation while it is played, between an environment and the policy's engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from hookline.policies.protocol import Tokenizer
from hookline.rollout.environments.outcomes import checked_reward
from hookline.rollout.errors import LessonError
from hookline.rollout.text.answers import Answer, NoAnswerError
from hookline.rollout.text.environment import (
    Conversation,
    LimitReached,
    Limits,
    Messages,
    TextEnvironment,
    TextProblem,
)
from hookline_hookspecs import Episode, Turn
from hookline_hookspecs.errors import describe_error, shortened

__all__ = ["Announce", "Failure", "OpenEpisode", "Response", "Setting"]

ROLES: Final = ("system", "user", "tool")
"""The roles of an environment's messages."""

ENDING_KEYS: Final = ("stop_reason", "failure")
"""Keys of an episode's metadata that say how it ended, and are not the problem's."""

Announce = Callable[[Episode, Turn], None]
"""Tells plugins of a new turn."""


class Response(NamedTuple):
    """The tokens of one response of the policy, and what the engine reports of each."""

    tokens: np.ndarray
    logprobs: np.ndarray
    log_mass: np.ndarray | None
    version: int | None
    """The version of the weights."""


class Failure(NamedTuple):
    """Takes the place of a problem that the environment failed to draw."""

    reason: str


class End(NamedTuple):
    """The environment has ended the conversation."""

    reward: Any


@dataclass(frozen=True)
class Setting:
    """What the episodes of a rollout have in common."""

    environment: TextEnvironment
    limits: Limits
    tokenizer: Tokenizer
    context: int
    """The most tokens of a conversation."""
    announce: Announce | None
    """None where plugins are not told, as in evaluations."""
    begun: dict[tuple[Turn, ...], list[int]] = field(default_factory=dict)
    """The tokens of first messages."""


class OpenEpisode:
    """Keeps what was said, and the tokens that the policy has read and sampled.

    It is in one of three states: `question` is to be asked of the environment and its answer given to `take`; or the
    policy is to respond (`is_ready`), by `respond`; or the episode is over. Only questions run in other threads.
    """

    def __init__(self, setting: Setting, drawn: TextProblem | Failure, group: int) -> None:
        self._setting = setting
        problem = drawn if isinstance(drawn, TextProblem) else TextProblem()
        own = {name: value for name, value in (problem.metadata or {}).items() if name not in ENDING_KEYS}
        self.episode = Episode(group=group, reference=problem.answer or None, metadata=own)
        self.tokens: list[int] = []
        self._parts: list[tuple[int, Response | None]] = []
        """The number of tokens of each part of the conversation, and the response that it is, if it is one."""
        self.responses = 0
        self.question: Callable[[], Any] | None = partial(self._begin, problem)
        self.is_ready = False
        self.unreadable: str | None = None
        """Why the policy cannot read what the environment said."""
        self._is_over = False
        self._limit: str | None = None
        self._conversation: Conversation | None = None
        if isinstance(drawn, Failure):
            self.question = None
            self._fail(drawn.reason)

    # -- questions to the environment, in another thread ----------------------------------------------------------

    def _begin(self, problem: TextProblem) -> Messages | End:
        self._conversation = self._setting.environment.converse(problem)
        return _answer_of(partial(next, self._conversation))

    def _ask(self, response: str) -> Messages | End:
        assert self._conversation is not None
        return _answer_of(partial(self._conversation.send, response))

    def _say_limit(self, limit: str) -> Messages | End:
        assert self._conversation is not None
        return _answer_of(partial(self._conversation.throw, LimitReached(limit)))

    def _close(self) -> None:
        if self._conversation is not None:
            self._conversation.close()

    # -- what the answers lead to ---------------------------------------------------------------------------------

    def take(self, answer: Answer) -> None:
        """Take the environment's answer to the question."""
        if self._is_over:  # the question was `_close`
            return
        if isinstance(answer.error, NoAnswerError):
            self._fail(str(answer.error))
        elif isinstance(answer.error, LimitReached) and self._limit is not None:
            self._end(0.0)
        elif answer.error is not None:
            self._fail(f"raised {describe_error(answer.error)}")
        else:
            self._take_value(answer.value)

    def _take_value(self, value: Any) -> None:
        try:
            if isinstance(value, End):
                return self._end(
                    None if value.reward is None else checked_reward(value.reward, lambda: "returned no valid reward")
                )
            messages = _checked_messages(value)
            if self._limit is not None:
                raise LessonError(f"went on after LimitReached({self._limit!r})")
        except LessonError as error:
            self.question = self._close
            return self._fail(str(error))
        self._read(messages)
        return None

    def _read(self, messages: Sequence[Turn]) -> None:
        """Add messages for the policy to read. Beyond a limit it does not, and the messages have no tokens."""
        try:
            tokens = self._tokens_of(messages)
        except LessonError as error:
            self.unreadable = str(error)
            self.question = self._close
            self._fail(self.unreadable)
            return
        self._add(messages, tokens)
        if self._is_stopped():
            self.question = self._close
        elif self._limit is None:
            self.is_ready = True
        else:
            self.episode.metadata["stop_reason"] = self._limit
            self.question = partial(self._say_limit, self._limit)

    def _tokens_of(self, messages: Sequence[Turn]) -> list[int]:
        """The tokens of messages; none beyond a limit. Raises an error if the policy cannot read them."""
        limits, room = self._setting.limits, self._setting.context
        if self.responses == limits.max_turns:
            self._limit = "max_turns"
            return []
        try:
            tokens = self._encode(messages)
        except Exception as error:  # of any tokenizer or chat template
            raise LessonError(f"said what cannot be encoded: {describe_error(error)}") from error
        if not self.tokens and not tokens:
            raise LessonError("began with a prompt that has no tokens")
        if len(self.tokens) + len(tokens) + limits.max_new_tokens <= room:
            return tokens
        if not self.responses:
            raise LessonError(
                f"began with a prompt of {len(tokens)} tokens, and a response has up to {limits.max_new_tokens}, but a "
                f"conversation has room for {room}, by the policy's context or max_tokens"
            )
        self._limit = "max_tokens"
        return []

    def _encode(self, messages: Sequence[Turn]) -> list[int]:
        tokenizer, begun = self._setting.tokenizer, self._setting.begun
        if not self.tokens:  # the conversations of a group begin alike
            first = tuple(messages)
            begun[first] = begun.get(first) or tokenizer.encode_messages(messages)
            return begun[first]
        tokens = tokenizer.encode_messages(messages, self.episode.turns)
        # The token that ends a response is the policy's own, unless the response was cut off.
        is_ended = self.tokens[-1] in tokenizer.end and tokens[0] == self.tokens[-1]
        return tokens[1:] if is_ended else tokens

    def respond(self, response: Response) -> None:
        """Add the policy's response, for the environment to answer."""
        self.is_ready = False
        self.responses += 1
        tokens = response.tokens.tolist()
        text = self._setting.tokenizer.decode(tokens)
        self._add([Turn("assistant", text)], tokens, response)
        self.question = self._close if self._is_stopped() else partial(self._ask, text)

    def _add(self, turns: Sequence[Turn], tokens: list[int], response: Response | None = None) -> None:
        """Add turns, the last of which has the tokens."""
        start = len(self.tokens)
        self.tokens += tokens
        self._parts.append((len(tokens), response))
        for turn in turns:
            added = Turn(turn.role, turn.text, start, len(self.tokens) if turn is turns[-1] else start)
            self.episode.add_turn(added)
            if self._setting.announce is not None:
                self._setting.announce(self.episode, added)

    def _is_stopped(self) -> bool:
        """Whether a plugin has ended the conversation."""
        self._is_over = bool(self.episode.metadata.get("stop_reason"))
        return self._is_over

    def _fail(self, reason: str) -> None:
        """End the episode because its environment failed."""
        self._end(None)
        self.episode.metadata["failure"] = reason

    def _end(self, reward: float | None) -> None:
        self._is_over = True
        self.episode.reward = reward

    # -- the result -----------------------------------------------------------------------------------------------

    def closed(self, temperature: float, version: int | None) -> Episode:
        """The episode with its tokens.

        :param version: the version of the weights of an episode without a response.
        """
        episode, parts = self.episode, self._parts
        responses = [own for _, own in parts if own is not None]
        episode.tokens = np.array(self.tokens, np.int32)
        episode.mask = np.array([is_sampled for size, own in parts for is_sampled in [own is not None] * size], bool)
        episode.logprobs = self._column("logprobs")
        if any(own.log_mass is not None for own in responses):
            episode.log_mass = self._column("log_mass")
        episode.temperature = temperature
        episode.weights_version = self._versions() if responses else version
        last = responses[-1].tokens.tolist() if responses else []
        episode.metadata["length"] = int(episode.mask.sum())
        episode.metadata["truncated"] = not last or last[-1] not in self._setting.tokenizer.end
        return episode

    def _column(self, name: str) -> np.ndarray:
        """A field of all responses, with 0 for the tokens between them."""
        column = np.zeros(len(self.tokens), np.float32)
        start = 0
        for size, response in self._parts:
            if response is not None:
                column[start : start + size] = getattr(response, name)
            start += size
        return column

    def _versions(self) -> Any:
        """The version of the weights, or one for each token if they changed: that which sampled it or first read it."""
        versions = [own.version for _, own in self._parts if own is not None]
        if len(set(versions)) == 1:
            return versions[0]
        read_by = np.cumsum([0, *(own is not None for _, own in self._parts)])[:-1].clip(max=len(versions) - 1)
        return np.repeat(np.array(versions)[read_by], [size for size, _ in self._parts])


def _answer_of(step: Callable[[], Messages]) -> Messages | End:
    try:
        return step()
    except StopIteration as end:
        return End(end.value)


def _checked_messages(value: Any) -> Sequence[Turn]:
    """What the environment yielded, as turns."""
    if isinstance(value, str):
        return [Turn("user", value)]
    wanted = f"it must be a text, or turns with the roles {', '.join(ROLES)}"
    if not isinstance(value, Sequence) or not value or not all(isinstance(own, Turn) for own in value):
        raise LessonError(f"yielded {shortened(value)}; {wanted}")
    for turn in value:
        if turn.role not in ROLES or not isinstance(turn.text, str):
            raise LessonError(f"yielded a turn {shortened((turn.role, turn.text))}; {wanted}")
    return value
