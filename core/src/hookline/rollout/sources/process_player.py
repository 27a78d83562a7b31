"""`ProcessPlayer`: has a player in a child process play.

Messages are pickles over a socket pair between this process and the children that it starts. What a player is made of
goes to a child by cloudpickle. A child is a new interpreter: a fork would break JAX's threads, and multiprocessing
would run the user's script again.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any, Final

from hookline.importing import require
from hookline.rollout.sources.pool import Outcome, Played, Player, WorkerLostError
from hookline.rollout.sources.thread_pool import ThreadPool

__all__ = ["ProcessPlayer", "process_pool"]

CLOSE_SECONDS: Final = 5.0
"""How long an idle child may take to exit before it is killed."""

POLL_SECONDS: Final = 0.1
"""How often a dead child is looked for whose connection is held open by a process that it forked."""


def process_pool(make_player: Callable[[int], Player], workers: int) -> ThreadPool:
    """A pool of child processes.

    :param make_player: called in each child with its index.
    """
    code = require("cloudpickle", "a source with processes").dumps(make_player)
    return ThreadPool(lambda index: ProcessPlayer(index, code), workers, pack=_pack)


def _pack(weights: Mapping[str, Any]) -> bytes:
    return pickle.dumps(weights, protocol=5)


class ProcessPlayer:
    """Starts a child, and passes all calls on to its player.

    :param code: the pickled function that makes the player, given the index.
    """

    def __init__(self, index: int, code: bytes) -> None:
        self._index = index
        self._code = code
        self._connection, far_end = Pipe()
        life, self._life = os.pipe()
        descriptors = (far_end.fileno(), life)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hookline.rollout.sources.child_process", *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                process_group=0,
            )
        finally:
            far_end.close()
            os.close(life)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> str:
        self._send(pickle.dumps((sys.path, self._index)), self._code)
        where: str = self._answer()
        return where

    def load_weights(self, weights: bytes, version: int) -> None:
        self._send(pickle.dumps(("load_weights", version)), weights)
        self._answer()

    def play(self, task: Any) -> Played:
        self._send(pickle.dumps(("play",)), pickle.dumps(task))
        played: Played = self._answer()
        return played

    def _send(self, *messages: bytes) -> None:
        # If the child is dead, waiting for its answer will show it.
        with suppress(BrokenPipeError, ConnectionResetError):
            for message in messages:
                self._connection.send_bytes(message)

    def _answer(self) -> Any:
        try:
            while not self._connection.poll(POLL_SECONDS):
                if self._process.poll() is not None and not self._connection.poll():
                    raise EOFError
            data = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerLostError(self._end()) from error
        try:
            outcome: Outcome = pickle.loads(data)
        except Exception as error:
            self.kill()
            raise WorkerLostError(f"it sent {len(data)} bytes that are not a message: {error}") from error
        return outcome.unwrap(self._index)

    def kill(self) -> None:
        """Kill the child and its own children."""
        if self._process.poll() is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # none is left; macOS says it is not permitted
            os.killpg(self.pid, signal.SIGKILL)

    def _end(self) -> str:
        """Let the child exit, or kill it if it does not. Returns how it ended."""
        self._connection.close()
        try:
            status = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        self._kill_group()  # a program that its environment has started may be left
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def close(self) -> None:
        self._end()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
