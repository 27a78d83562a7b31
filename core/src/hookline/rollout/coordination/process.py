"""The coordinator's end of one worker process."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from typing import Final

from hookline.rollout.coordination.messages import Message, pack, unpack

__all__ = ["WorkerProcess"]

CLOSE_SECONDS: Final = 5.0
"""How long a worker that plays nothing may take to end by itself."""

START_SECONDS: Final = 120.0
"""Added to the timeout of the first request, since imports take their time on a busy machine."""


class WorkerProcess:
    """Starts a process, which answers each request with one message.

    A new interpreter rather than a fork, which JAX's threads do not survive, and rather than multiprocessing, which
    would run the user's script a second time.

    :param start: the first request, which makes the environment and the policy.
    :param timeout_seconds: how long an episode may take; None for any time.
    """

    def __init__(self, index: int, start: Message, timeout_seconds: float | None) -> None:
        self.index = index
        self.environment: str | None = None
        """The environment's name, once it is made."""
        self.episode: int | None = None
        """The number of the episode it plays."""
        self.version: int | None = None
        """The version of the weights that it has."""
        self._timeout = timeout_seconds
        self._deadline: float | None = None
        self.connection, far_end = Pipe()
        life, self._life = os.pipe()
        command = [sys.executable, "-m", "hookline.rollout.coordination.worker_process"]
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
        """A request has not been answered."""
        return self._deadline is not None

    def request(self, message: Message) -> None:
        self._request(message, self._timeout)

    def _request(self, message: Message, seconds: float | None) -> None:
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        # The death of the process is noticed when its answer is waited for.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(pack(message))

    def receive(self) -> Message | None:
        """The answer that has come, None when the process is gone instead."""
        try:
            message = unpack(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        self._deadline = None
        return message

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, even if something that it forked holds the connection open."""
        return self._process.poll() is not None and not self.connection.poll()

    @property
    def is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def kill(self) -> None:
        """End the process, and what its environment has started, whatever they do."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> str:
        """Have the process end, by force if it does not end by itself; returns how it ended."""
        self.connection.close()
        try:
            status = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        os.close(self._life)
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
