"""`WorkerPool`: worker processes that play episodes. One that dies or hangs is replaced."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any, Final

import numpy as np

from hookline.extras import require
from hookline.rollout.coordinator.messages import Message, episode_of, pack, unpack
from hookline.rollout.errors import RolloutError
from hookline_hookspecs import Episode

__all__ = ["WorkerDeath", "WorkerPool", "WorkerProcess"]

CLOSE_SECONDS: Final = 5.0
"""How long an idle worker may take to exit before it is killed."""

START_SECONDS: Final = 120.0
"""Added to the timeout of the first request, since imports may be slow on a busy machine."""


class WorkerProcess:
    """A worker process, which answers each request with one message.

    It is a new interpreter. A fork would break JAX's threads, and multiprocessing would run the user's script again.

    :param start: the first request, which creates the environment and the policy.
    :param timeout_seconds: the time limit of an episode, or None.
    """

    def __init__(self, index: int, start: Message, timeout_seconds: float | None) -> None:
        self.index = index
        self.environment: str | None = None
        """The environment's name. None until it is created."""
        self.episode: int | None = None
        """The number of the current episode."""
        self.version: int | None = None
        """The version of its weights."""
        self._timeout = timeout_seconds
        self._deadline: float | None = None
        self.connection, far_end = Pipe()
        life, self._life = os.pipe()
        command = [sys.executable, "-m", "hookline.rollout.coordinator.worker_process"]
        descriptors = (far_end.fileno(), life)
        try:
            self._process = subprocess.Popen(
                [*command, *map(str, descriptors)], stdin=subprocess.DEVNULL, pass_fds=descriptors, process_group=0
            )
        finally:
            far_end.close()
            os.close(life)
        self._request(start, None if timeout_seconds is None else START_SECONDS + timeout_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_busy(self) -> bool:
        """Whether a request has not been answered yet."""
        return self._deadline is not None

    def request(self, message: Message) -> None:
        self._request(message, self._timeout)

    def _request(self, message: Message, seconds: float | None) -> None:
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        # If the process is dead, waiting for its answer will show it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(pack(message))

    def receive(self) -> Message | None:
        """The answer, or None if the process is gone."""
        try:
            message = unpack(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        self._deadline = None
        return message

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, even if a process that it forked holds the connection open."""
        return self._process.poll() is not None and not self.connection.poll()

    @property
    def is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def kill(self) -> None:
        """Kill the process and its children."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> str:
        """Let the process exit, or kill it if it does not. Returns how it ended."""
        self.connection.close()
        try:
            status = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        os.close(self._life)
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


logger = logging.getLogger("hookline.rollout")

DEATHS_PER_EPISODE: Final = 3
"""An episode is not tried again after this many workers have died while playing it."""

POLL_SECONDS: Final = 0.1
"""How often dead processes are looked for whose connection is held open by a process that they forked."""

START: Final = -1
"""The episode number of a worker that is still creating its environment and policy."""


@dataclass(frozen=True)
class WorkerDeath:
    """A worker process that died or hung, and was replaced."""

    worker: int
    how: str
    episode: int | None
    """The episode that it was playing. Another worker plays it again."""


@dataclass
class _Collection:
    """The episodes of one `collect`. Numbers are unique, so late answers of an earlier `collect` are ignored."""

    tasks: Mapping[int, Mapping[str, Any]]
    waiting: list[int] = field(default_factory=list)
    played: dict[int, Episode] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.waiting = sorted(self.tasks, reverse=True)


class WorkerPool:
    """Plays episodes in worker processes.

    :param timeout_seconds: the time limit of an episode, or None.
    """

    def __init__(
        self, env_fn: Callable[[], Any], policy_fn: Callable[[], Any], count: int, timeout_seconds: float | None
    ) -> None:
        cloudpickle = require("cloudpickle", "a coordinator with worker processes")
        code = np.frombuffer(cloudpickle.dumps((env_fn, policy_fn)), np.uint8)
        self._start = Message({"path": sys.path}, {"code": code})
        self._timeout = timeout_seconds
        self._weights: tuple[int, Mapping[str, Any]] | None = None
        self.deaths: list[WorkerDeath] = []
        self._workers = [WorkerProcess(index, self._start, timeout_seconds) for index in range(count)]

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None:
        # They are sent with the next episode, since a worker that hangs now would not read them.
        self._weights = version, weights
        for worker in self._workers:
            worker.version = None

    def play(self, tasks: Mapping[int, Mapping[str, Any]]) -> dict[int, Episode]:
        if not self._workers:
            raise RolloutError("the coordinator is closed")
        collection = _Collection(tasks)
        while len(collection.played) < len(tasks):
            for worker in self._workers:
                if collection.waiting and not worker.is_busy:
                    self._send(worker, collection.waiting.pop(), collection)
            ready = wait([worker.connection for worker in self._workers], POLL_SECONDS)
            for worker in list(self._workers):
                if worker.connection in ready:
                    self._take_answer(worker, collection)
                elif worker.has_ended or worker.is_late:
                    self._replace(worker, collection)
        return collection.played

    def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            if worker.is_busy:
                worker.kill()
            worker.close()

    def _send(self, worker: WorkerProcess, number: int, collection: _Collection) -> None:
        worker.episode = number
        facts: dict[str, Any] = {"episode": number, **collection.tasks[number]}
        if self._weights is None or worker.version == self._weights[0]:
            worker.request(Message(facts))
        else:
            worker.version, weights = self._weights
            worker.request(Message({**facts, "version": worker.version}, weights))

    def _take_answer(self, worker: WorkerProcess, collection: _Collection) -> None:
        message = worker.receive()
        if message is None:
            self._replace(worker, collection)
            return
        number, worker.episode = worker.episode, None
        if "error" in message.facts:
            worker.version = None  # loading the weights may have failed
            if worker.environment is None:  # it could not create its environment or policy
                self._restart(worker)
            if number is None or number in collection.tasks:
                error = RolloutError(f"rollout worker {worker.index}: {message.facts['error']}")
                error.add_note(f"in the worker process:\n{message.facts['traceback']}")
                raise error
        elif worker.environment is None:
            worker.environment = str(message.facts["environment"])
        elif number is not None and number in collection.tasks:
            collection.played[number] = episode_of(message)

    def _replace(self, worker: WorkerProcess, collection: _Collection) -> None:
        is_late = worker.is_late
        if is_late:
            worker.kill()
        how = self._restart(worker)
        if is_late:
            how = f"no answer in {self._timeout:g} s"
        death = WorkerDeath(worker.index, how, worker.episode)
        self.deaths.append(death)
        idle = "starting" if worker.environment is None else "waiting"
        doing = idle if death.episode is None else f"playing episode {death.episode}"
        logger.warning("rollout worker %d died (%s) while %s: replaced", death.worker, how, doing)
        number = START if worker.environment is None else death.episode
        if number is not None and (number == START or number in collection.tasks):
            collection.deaths[number] += 1
            if collection.deaths[number] == DEATHS_PER_EPISODE:
                raise _given_up(worker, death, is_late=is_late)
            if number != START:
                collection.waiting.append(number)

    def _restart(self, worker: WorkerProcess) -> str:
        """Replace a worker by a new process. Returns how the old one ended."""
        how = worker.close()
        self._workers[worker.index] = WorkerProcess(worker.index, self._start, self._timeout)
        return how


def _given_up(worker: WorkerProcess, death: WorkerDeath, *, is_late: bool) -> RolloutError:
    where = (
        "env_fn and policy_fn"
        if worker.environment is None
        else f"environment {worker.environment!r}, episode {death.episode}"
    )
    advice = (
        "raise create_rollout_coordinator(timeout_seconds=...), or find where it hangs"
        if is_late
        else "see their output on stderr"
    )
    return RolloutError(
        f"{where}: {DEATHS_PER_EPISODE} rollout workers died there, the last with {death.how}; {advice}"
    )
