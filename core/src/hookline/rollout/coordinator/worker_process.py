"""A worker process of the coordinator: `python -m hookline.rollout.coordinator.worker_process MESSAGES LIFE`.

Both are file descriptors. Messages have their own, so that an environment may use stdin and stdout. LIFE is the reading
end of a pipe whose other end is open only in the coordinator's process. When that process ends for any reason, this
process and its children are killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

from hookline.extras import require
from hookline.rollout.coordinator.messages import Message, episode_message, pack, unpack
from hookline.rollout.coordinator.player import Player, make_player
from hookline_hookspecs.errors import describe_error
from hookline_hookspecs.logs import hide_secrets_in_tracebacks
from hookline_hookspecs.redaction import redact_text

__all__ = ["main"]


def main(messages: int, life: int) -> None:
    hide_secrets_in_tracebacks()
    end_with_coordinator(life)
    os.set_inheritable(messages, False)
    with Connection(messages) as connection:
        # A process that the environment forks must not keep the connection open after this one has died.
        os.register_at_fork(after_in_child=connection.close)
        with suppress(OSError):
            os.dup2(2, 1)  # keeps the environment's output out of the coordinator's stdout
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the coordinator is gone or has closed
            serve(connection)


def end_with_coordinator(life: int) -> None:
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

    threading.Thread(target=kill_at_end_of_pipe, name="hookline-coordinator-watch", daemon=True).start()


def serve(connection: Connection) -> None:
    """Create the player from the first request, then answer each request with one message."""
    player: Player | None = None
    try:
        while True:
            request = unpack(connection.recv_bytes())
            try:
                if player is None:
                    player = _start(request)
                    answer = Message({"environment": player.name})
                else:
                    answer = _play(player, request)
            except Exception as error:  # raised again by the coordinator
                answer = Message({"error": describe_error(error), "traceback": redact_text(traceback.format_exc())})
            connection.send_bytes(pack(answer))
    finally:
        if player is not None:
            player.close()


def _play(player: Player, request: Message) -> Message:
    facts = dict(request.facts)
    if "version" in facts:
        player.update_weights(dict(request.arrays), facts.pop("version"))
    number = facts.pop("episode")
    return episode_message(number, player.play(number, **facts))


def _start(request: Message) -> Player:
    cloudpickle = require("cloudpickle", "a rollout worker process")
    sys.path[:] = request.facts["path"]
    env_fn, policy_fn = cloudpickle.loads(request.arrays["code"].tobytes())
    return make_player(env_fn, policy_fn)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
