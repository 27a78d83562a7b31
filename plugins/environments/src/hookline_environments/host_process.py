"""`HostProcess`: a process that hosts an environment, and answers questions as JSON lines in any order."""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any, Final

from hookline.errors import HooklineError

__all__ = ["HostError", "HostProcess"]

HOSTING: Final = Path(__file__).parent / "hosting"
"""Where the process finds the package `hookline_host`."""

PING_SECONDS: Final = 0.5
"""While questions are open, the process is asked this often whether it responds at all."""

Answer = dict[str, Any]


class HostError(HooklineError):
    """The process of an environment cannot be started, has ended, or has answered with an error."""


class HostProcess:
    """Runs until `close`, or until it is found to hang.

    One thread of ours reads what the process writes. Questions are asked from any thread.

    :param name: the environment's name, for errors.
    :param command: a Python and its arguments, to which the options are added as JSON.
    :param start_seconds: how long the process may take until its environment is ready.
    :param hang_seconds: a process that does not respond to a ping for so long is killed.
    """

    def __init__(
        self, name: str, command: Sequence[str], options: Mapping[str, Any], start_seconds: float, hang_seconds: float
    ) -> None:
        self._name = name
        self._hang_seconds = hang_seconds
        self.answer_seconds = threading.TIMEOUT_MAX
        """A process that leaves a question unanswered for so long is killed."""
        self._numbers = count()
        self._open: dict[int, Future[Answer]] = {}
        self._writing = threading.Lock()
        self._silent_since: float | None = None
        """When the last ping was sent, or should have been, if there was no answer of any kind since."""
        self._pinged = False
        """Whether that ping could be sent."""
        self._stderr: deque[str] = deque(maxlen=3)
        self._killed: str | None = None
        """Why we killed the process."""
        self._ended: str | None = None
        path = os.pathsep.join(filter(None, [str(HOSTING), os.environ.get("PYTHONPATH")]))
        try:
            self._process = subprocess.Popen(
                [*command, json.dumps(dict(options))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for this process alone, which then ends the other
            )
        except OSError as error:
            raise HostError(f"environment {name!r}: {command[0]!r} cannot be started: {error.strerror}") from error
        self._ready: Future[Answer] = Future()
        self._reader = threading.Thread(target=self._read, name="hookline-host", daemon=True)
        self._reader.start()
        self.limits: Mapping[str, Any] = self._wait_until_ready(start_seconds)
        """The environment's limits, by the names of the fields of `Limits`."""

    @property
    def has_ended(self) -> bool:
        return self._ended is not None

    def ask(self, do: str, **question: Any) -> Answer:
        """Ask a question and wait for the answer. Raises a `HostError` where there is none."""
        number = next(self._numbers)
        answer = self._open[number] = Future()
        self._write({"id": number, "do": do, **question})
        if self._ended is not None:  # the reader may have missed it
            self._give_up()
        try:
            answered = answer.result(self.answer_seconds)
        except TimeoutError:
            # It still answers a ping, so nothing else would end a question that hangs, and its thread here and there.
            self._kill(f"it left a question unanswered for {self.answer_seconds:g} s")
            answered = answer.result()
        return _without_error(answered)

    def tell(self, do: str, **question: Any) -> None:
        """Say something that needs no answer."""
        with suppress(HostError):
            self._write({"do": do, **question})

    def close(self) -> None:
        """Kill the process, with all that it is doing."""
        self._kill("it was closed")
        self._reader.join()

    # -- the other direction --------------------------------------------------------------------------------------

    def _write(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        assert self._process.stdin is not None
        with self._writing, suppress(BrokenPipeError, ValueError):  # it has ended, and the reader says so
            while line:
                line = line[os.write(self._process.stdin.fileno(), line) :]

    def _wait_until_ready(self, seconds: float) -> Mapping[str, Any]:
        try:
            answer = _without_error(self._ready.result(timeout=seconds))
        except TimeoutError:
            self._kill(f"it was not ready after {seconds:g} s")
            self._reader.join()
            raise HostError(f"environment {self._name!r}: {self._ended}") from None
        except HostError as error:
            self._kill("it was not ready")
            self._reader.join()
            raise HostError(f"environment {self._name!r}: {error}") from error
        limits: Mapping[str, Any] = answer.get("limits", {})
        return limits

    # -- in the thread that reads ---------------------------------------------------------------------------------

    def _read(self) -> None:
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        with selectors.DefaultSelector() as selector:
            for stream, take in ((stdout, self._take), (stderr, self._take_stderr)):
                selector.register(stream, selectors.EVENT_READ, (take, _Lines(stream)))
            while selector.get_map():
                events = selector.select(PING_SECONDS)
                for key, _ in events:
                    take, lines = key.data
                    for line in lines.read():
                        take(line)
                    if lines.has_ended:
                        selector.unregister(key.fileobj)
                if not events and self._process.poll() is not None:
                    break  # a process that it has started may still have the streams
                self._look_after()
        self._end()

    def _take(self, line: str) -> None:
        self._silent_since = None
        try:
            answer = json.loads(line)
            is_answer = isinstance(answer, dict)
        except ValueError:
            is_answer = False
        if not is_answer:
            self._kill(f"it wrote {line[:80]!r} to stdout, which is for answers alone")
        elif "ready" in answer:
            if not self._ready.done():
                self._ready.set_result(answer)
        else:
            waiting = self._open.pop(answer.get("id"), None)
            if waiting is not None:
                waiting.set_result(answer)

    def _take_stderr(self, line: str) -> None:
        self._stderr.append(line)

    def _look_after(self) -> None:
        """Ping a process with open questions, and kill one that has not responded for too long."""
        now = time.monotonic()
        if not self._open or not self._ready.done():
            self._silent_since = None
            return
        if self._silent_since is None:
            self._silent_since, self._pinged = now, False
        if not self._pinged and self._can_write():
            self._silent_since, self._pinged = now, True
            self._write({"id": -1, "do": "ping"})
        elif now - self._silent_since > self._hang_seconds:
            self._kill(f"it did not respond for {self._hang_seconds:g} s")

    def _can_write(self) -> bool:
        """Whether a ping would not block: the process reads, and no question is being written this moment."""
        assert self._process.stdin is not None
        stdin = select.poll()
        stdin.register(self._process.stdin, select.POLLOUT)
        return bool(stdin.poll(0)) and not self._writing.locked()

    def _kill(self, reason: str) -> None:
        if self._killed is None and self._process.returncode is None:
            self._killed = reason
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        status = self._process.wait()
        if self._killed is not None:
            reason = f"its process was killed, since {self._killed}"
        elif status < 0:
            reason = f"its process was killed by signal {-status}"
        else:
            reason = f"its process ended with status {status}"
        last = [line.strip() for line in self._stderr if line.strip()]
        self._ended = f"{reason} ({last[-1]})" if last and status > 0 else reason
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self._give_up()

    def _give_up(self) -> None:
        """Answer all open questions with the reason why there is no answer."""
        ended = {"error": self._ended}
        with suppress(InvalidStateError):
            self._ready.set_result(ended)
        while self._open:
            with suppress(KeyError):
                self._open.popitem()[1].set_result(ended)


class _Lines:
    """The lines of a stream that is read without waiting for them."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._rest = b""
        self.has_ended = False

    def read(self) -> Iterator[str]:
        data = os.read(self._stream.fileno(), 1 << 16)
        self.has_ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def _without_error(answer: Answer) -> Answer:
    if "error" in answer:
        raise HostError(str(answer["error"]))
    return answer
