"""Environments in a process with a Python of its own: `verifiers:NAME`, `openenv:URL`, `process:FILE`."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookline.rollout.text import Conversation, LimitReached, Limits, TextProblem
from hookline_environments.host_process import HostError, HostProcess
from hookline_hookspecs import Turn

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ProcessEnvironment", "openenv_environment", "process_environment", "verifiers_environment"]

RETRY_SECONDS: Final = 5.0
"""After a start that failed, the next is tried only after this time. Until then, all conversations fail."""

PATIENCE: Final = 2.0
"""The default of `answer_seconds`, in terms of the time limit of an answer. By then, the rollout no longer waits."""


class ProcessEnvironment:
    """A text environment in another process, which `hookline_host.serve` or a program with the same protocol hosts.

    A process that has died or hangs ends its conversations as failures. The next conversation starts a new one.

    :param name: the environment's name, for errors.
    :param python: the Python that runs the host.
    :param arguments: the host's file, or `-m` and its module.
    :param options: of the environment, as JSON-compatible data.
    :param start_seconds: how long the process may take until its environment is ready.
    :param hang_seconds: a process that does not respond to a ping for so long is killed.
    :param answer_seconds: so is one that leaves a question unanswered for so long. None for twice the `seconds` of the
        environment's limits. Raise it along with the `seconds` of a lesson.
    """

    def __init__(
        self,
        name: str,
        python: str,
        arguments: Sequence[str],
        options: Mapping[str, Any],
        start_seconds: float = 300.0,
        hang_seconds: float = 30.0,
        answer_seconds: float | None = None,
    ) -> None:
        command = [str(Path(python).expanduser()), *arguments]
        self._arguments = name, command, options, start_seconds, hang_seconds
        self._answer_seconds = answer_seconds
        self._lock = threading.Lock()
        self._numbers = count()
        self._retry_at = 0.0
        self._host = self._start()

    def _start(self) -> HostProcess:
        host = HostProcess(*self._arguments)
        weakref.finalize(self, host.close)
        self.limits = Limits(**host.limits)
        host.answer_seconds = PATIENCE * self.limits.seconds if self._answer_seconds is None else self._answer_seconds
        return host

    def _running(self) -> HostProcess:
        """The process, started again if it has ended."""
        with self._lock:
            if self._host.has_ended:
                if time.monotonic() < self._retry_at:
                    raise HostError("its process could not be started again a moment ago")
                self._retry_at = time.monotonic() + RETRY_SECONDS
                self._host = self._start()
                self._retry_at = 0.0
            return self._host

    def close(self) -> None:
        """End the process."""
        self._host.close()

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> TextProblem:
        problem = self._running().ask("draw", seed=int(rng.integers(2**31)), held_out=held_out)["problem"]
        return TextProblem(**problem)

    def converse(self, problem: TextProblem) -> Conversation:
        host, number = self._running(), next(self._numbers)
        answer = host.ask("begin", conversation=number, problem=problem._asdict())
        is_open = True
        try:
            while "reward" not in answer:
                messages = [Turn(message["role"], message["text"]) for message in answer["messages"]]
                try:
                    response = yield messages
                except LimitReached as limit:
                    answer = host.ask("limit", conversation=number, limit=str(limit))
                else:
                    answer = host.ask("respond", conversation=number, text=response)
            is_open = False
        finally:
            if is_open:
                host.tell("close", conversation=number)
        reward: float | None = answer["reward"]
        return reward


def process_environment(
    file: str,
    *,
    python: str = sys.executable,
    start_seconds: float = 300.0,
    hang_seconds: float = 30.0,
    answer_seconds: float | None = None,
    **options: Any,
) -> ProcessEnvironment:
    """An environment of your own in a process of its own.

    :param file: a Python file that calls `hookline_host.serve`.
    :param python: the Python that runs it, such as that of a virtual environment.
    :param options: arguments of the function that the file passes to `serve`.
    """
    host = [str(Path(file).expanduser())]
    times = start_seconds, hang_seconds, answer_seconds
    return ProcessEnvironment(f"process:{file}", python, host, options, *times)


def verifiers_environment(
    taskset: str,
    *,
    python: str = sys.executable,
    size: int = 1000,
    held_out_size: int = 0,
    start_seconds: float = 300.0,
    hang_seconds: float = 30.0,
    answer_seconds: float | None = None,
    **options: Any,
) -> ProcessEnvironment:
    """A taskset of verifiers, whose tasks score the conversations.

    :param taskset: the name of an installed taskset, as for `verifiers`' own commands.
    :param python: a Python that has verifiers and the taskset.
    :param size: the most tasks that are loaded.
    :param held_out_size: how many of them, the last, are kept for evaluations.
    :param options: of the taskset's config.
    """
    host = ["-m", "hookline_host.verifiers_host"]
    given = {"taskset": taskset, "size": size, "held_out_size": held_out_size, "config": options}
    times = start_seconds, hang_seconds, answer_seconds
    return ProcessEnvironment(f"verifiers:{taskset}", python, host, given, *times)


def openenv_environment(
    url: str,
    *,
    python: str = sys.executable,
    action: str | None = None,
    observation: str | None = None,
    prompt: str = "",
    role: str = "user",
    reset: Mapping[str, Any] | None = None,
    start_seconds: float = 300.0,
    hang_seconds: float = 30.0,
    answer_seconds: float | None = None,
) -> ProcessEnvironment:
    """An environment on an OpenEnv server. Each conversation is a session of its own there.

    :param url: the server's address.
    :param python: a Python that has openenv.
    :param action: the field of an action that takes the response. None for the only one that is a string.
    :param observation: the field of an observation that the policy reads. None for all of them.
    :param prompt: what the policy reads before the first observation.
    :param role: the role of the observations: `user` or `tool`.
    :param reset: further arguments of the server's `reset`, besides the seed.
    """
    host = ["-m", "hookline_host.openenv_host"]
    given = {
        "url": url, "action": action, "observation": observation, "prompt": prompt, "role": role, "reset": reset or {},
    }  # fmt: skip
    times = start_seconds, hang_seconds, answer_seconds
    return ProcessEnvironment(f"openenv:{url}", python, host, given, *times)
