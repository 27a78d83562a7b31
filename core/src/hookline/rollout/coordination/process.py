"""The coordinator's end of one worker process."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from hookline.rollout.coordination.messages import Message, read_message, write_message

__all__ = ["Answer", "WorkerProcess", "describe_exit"]

CLOSE_SECONDS: Final = 5.0
"""How long a worker may take to end by itself."""


@dataclass(frozen=True)
class Answer:
    """What came from a process; no message means that it is gone."""

    process: WorkerProcess
    message: Message | None


class WorkerProcess:
    """Starts a process and puts all that it says into a queue that the coordinator's processes share.

    A new interpreter rather than a fork, which JAX's threads do not survive, and rather than multiprocessing, which
    would run the user's script a second time.
    """

    def __init__(self, index: int, start: Message, answers: queue.SimpleQueue[Answer]) -> None:
        self.index = index
        self.episode: int | None = None
        """The number of the episode it plays."""
        command = [sys.executable, "-m", "hookline.rollout.coordination.worker_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._requests = cast("BinaryIO", self._process.stdin)
        self._answers = answers
        self._reader = threading.Thread(target=self._read, name=f"hookline-worker-{index}", daemon=True)
        self._reader.start()
        self.send(start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message) -> None:
        # One that is gone is noticed by its reader; there is nobody to tell here.
        with suppress(BrokenPipeError):
            write_message(self._requests, message)

    def _read(self) -> None:
        stream = cast("BinaryIO", self._process.stdout)
        with stream:
            message = read_message(stream)
            while message is not None:
                self._answers.put(Answer(self, message))
                message = read_message(stream)
        self._answers.put(Answer(self, None))

    def close(self) -> int:
        """End the process, by force if it does not end by itself; returns its exit status."""
        with suppress(BrokenPipeError):
            self._requests.close()
        try:
            status = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join()
        return status


def describe_exit(status: int) -> str:
    """An exit status in words."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
