"""`Answers`: asks environments in threads, each question with a time limit."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

__all__ = ["MOST_THREADS", "Answer", "Answers", "NoAnswerError"]

MOST_THREADS: Final = 64
"""Questions that are answered at the same time."""

LOOK_SECONDS: Final = 0.005
"""While questions wait, the number of threads doubles after this time. Environments that answer at once need one."""

Asked = TypeVar("Asked")


class NoAnswerError(Exception):
    """A question was not answered in time."""


class Answer(NamedTuple):
    """What a question led to: a value, or the exception that was raised instead."""

    value: Any = None
    error: BaseException | None = None


@dataclass(eq=False, slots=True)
class _Question(Generic[Asked]):
    asked: Asked
    question: Callable[[], Any]
    since: float = 0.0
    """When a thread began to answer it, by `time.monotonic()`."""
    is_overdue: bool = False
    """Its time is over. An answer that comes later is ignored."""


class Answers(Generic[Asked]):
    """The questions of one rollout, and the threads that answer them.

    :param seconds: the time limit of each question, from when a thread begins to answer it.
    :param in_order: answer one question after the other. When one takes too long, those after it are given up too.
    """

    def __init__(self, seconds: float, *, in_order: bool = False) -> None:
        self._seconds = seconds
        self._in_order = in_order
        self._waiting: deque[_Question[Asked]] = deque()
        self._answered: deque[tuple[_Question[Asked], Answer]] = deque()
        self._some_answered = threading.Event()
        self._threads: list[_Thread] = []
        self.open = 0
        """How many questions are not answered yet."""

    def ask(self, asked: Asked, question: Callable[[], Any]) -> None:
        """Let a thread answer a question, as soon as the answers are collected.

        :param asked: what `collect` returns with the answer.
        """
        self.open += 1
        self._waiting.append(_Question(asked, question))

    def collect(self, patience: float = math.inf) -> list[tuple[Asked, Answer]]:
        """Wait for answers to all open questions, and return them with what was asked.

        A question that takes too long is answered with a `NoAnswerError`.

        :param patience: seconds after which those answers that there are, and at least one, will do.
        """
        enough_at = time.monotonic() + patience
        collected: list[tuple[Asked, Answer]] = []
        more_threads = 1
        while self.open and not (collected and time.monotonic() >= enough_at):
            if self._waiting:
                more_threads = self._add_threads(more_threads)
            self._some_answered.wait(LOOK_SECONDS)
            self._some_answered.clear()
            while self._answered:
                question, answer = self._answered.popleft()
                if not question.is_overdue:
                    self.open -= 1
                    collected.append((question.asked, answer))
            collected += self._overdue()
        return collected

    def _add_threads(self, count: int) -> int:
        """Start up to `count` threads. Returns how many to start if questions still wait."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        answering = sum(not thread.hangs for thread in self._threads)
        most = 1 if self._in_order else MOST_THREADS
        for _ in range(min(count, most - answering)):
            thread = _Thread(self._waiting, self._answered, self._some_answered)
            self._threads.append(thread)
            thread.start()
        return 2 * count

    def _overdue(self) -> list[tuple[Asked, Answer]]:
        """The questions whose time is over, and if they have an order, those that wait for them."""
        found: list[tuple[Asked, Answer]] = []
        for thread in self._threads:
            question = thread.current
            if question is None or question.is_overdue or time.monotonic() - question.since <= self._seconds:
                continue
            question.is_overdue = True
            found.append((question.asked, self._no_answer()))
        if found and self._in_order:
            with suppress(IndexError):  # until none waits
                while True:
                    found.append((self._waiting.popleft().asked, self._no_answer()))
        self.open -= len(found)
        return found

    def _no_answer(self) -> Answer:
        return Answer(error=NoAnswerError(f"gave no answer within {self._seconds:g} s"))


class _Thread(threading.Thread):
    """Answers waiting questions until there are none. Python cannot stop a thread, so one that hangs is left alone."""

    def __init__(
        self,
        waiting: deque[_Question[Any]],
        answered: deque[tuple[_Question[Any], Answer]],
        some_answered: threading.Event,
    ) -> None:
        super().__init__(name="hookline-environment", daemon=True)
        self._waiting = waiting
        self._answered = answered
        self._some_answered = some_answered
        self.current: _Question[Any] | None = None

    @property
    def hangs(self) -> bool:
        question = self.current
        return question is not None and question.is_overdue

    def run(self) -> None:
        while self._waiting:
            try:
                question = self._waiting.popleft()
            except IndexError:  # another thread has taken it
                break
            question.since = time.monotonic()
            self.current = question
            try:
                answer = Answer(question.question())
            except BaseException as error:  # also SystemExit, which would end this thread alone
                answer = Answer(error=error)
            self.current = None
            self._answered.append((question, answer))
        self._some_answered.set()
