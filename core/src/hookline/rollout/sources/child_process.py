"""A child of `ProcessPlayer`: `python -m hookline.rollout.sources.child_process MESSAGES LIFE`.

Both are file descriptors. Messages have their own, so that an environment may use stdin and stdout. LIFE is the reading
end of a pipe whose other end is open only in the parent. When the parent ends for any reason, this process and its
children are killed.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from hookline.rollout.errors import RolloutError
from hookline.rollout.sources.pool import Outcome, Player
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.logs import hide_secrets_in_tracebacks

__all__ = ["main"]


def main(messages: int, life: int) -> None:
    hide_secrets_in_tracebacks()
    end_with_parent(life)
    os.set_inheritable(messages, False)
    with Connection(messages) as connection:
        # A process that the environment forks must not keep the connection open after this one has died.
        os.register_at_fork(after_in_child=connection.close)
        with suppress(OSError):
            os.dup2(2, 1)  # keeps the environment's output out of the parent's stdout
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone or has closed
            serve(connection)


def end_with_parent(life: int) -> None:
    """Kill this process's group when the pipe's other end closes, even while the main thread hangs."""
    os.set_inheritable(life, False)
    group = os.getpgrp()
    if hasattr(fcntl, "F_SETSIG"):  # Linux sends the signal even if the GIL is held
        fcntl.fcntl(life, fcntl.F_SETOWN, -group)
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)

    def kill_at_end_of_pipe() -> None:
        os.read(life, 1)
        os.killpg(group, signal.SIGKILL)

    threading.Thread(target=kill_at_end_of_pipe, name="hookline-parent-watch", daemon=True).start()


def serve(connection: Connection) -> None:
    """Make the player from the first message, then answer each call with one message."""
    path, index = pickle.loads(connection.recv_bytes())
    code = connection.recv_bytes()
    sys.path[:] = path
    player: Player | None = None

    def start() -> str:
        nonlocal player
        player = pickle.loads(code)(index)
        return player.start()

    try:
        _answer(connection, start)
        while player is not None:
            method, *arguments = pickle.loads(connection.recv_bytes())
            data = connection.recv_bytes()
            _answer(connection, lambda: getattr(player, method)(pickle.loads(data), *arguments))  # noqa: B023
    finally:
        if player is not None:
            player.close()


def _answer(connection: Connection, call: Callable[[], Any]) -> None:
    """Send the outcome of a call."""

    def pickled() -> bytes:
        result = Outcome(call())
        try:
            return pickle.dumps(result, protocol=5)
        except Exception as error:
            raise RolloutError(f"the result cannot be sent to the trainer: {describe_error(error)}") from error

    outcome = Outcome.of(pickled)
    connection.send_bytes(outcome.result if outcome.error is None else pickle.dumps(outcome))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
