"""An evaluation in a process of its own, which loads the checkpoint: training goes on meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import IO

from hookline_evaluation.elsewhere.messages import Answer, Ticket, request_to_json
from hookline_evaluation.errors import EvaluationError
from hookline_hookspecs.redaction import redact_text

__all__ = ["ChildEvaluation"]

SHOWN_LINES = 5
"""How much of a failed process's last words goes into the error."""


class ChildEvaluation:
    """Started when made. What passes between the processes is in files without names, which are gone with them."""

    def __init__(self, ticket: Ticket, timeout_seconds: float) -> None:
        self._ticket = ticket
        self._timeout = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._exchange = tempfile.TemporaryFile()  # noqa: SIM115 - open until `stop`
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._exchange.write(json.dumps(request_to_json(ticket.request)).encode())
        self._exchange.flush()
        descriptor = self._exchange.fileno()
        checkpoint = str(ticket.checkpoint.resolve())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hookline_evaluation.elsewhere.child", checkpoint, str(descriptor)],
            stdin=subprocess.PIPE,  # held open for as long as this process lives, and never written to
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=[descriptor],
        )

    def wait(self, seconds: float) -> bool:
        left = max(0.0, self._deadline - time.monotonic())
        try:
            self._process.wait(min(seconds, left))
        except subprocess.TimeoutExpired:
            return time.monotonic() >= self._deadline
        return True

    def answer(self) -> Answer:
        # An answer that ends in a newline is complete, whatever became of the process after it.
        said = self._read(self._exchange)
        if said.endswith(b"\n"):
            return Answer.from_json(json.loads(said))
        if self._process.poll() is None:
            raise EvaluationError(f"the evaluation of {self._ticket.checkpoint} took more than {self._timeout:g} s")
        raise EvaluationError(
            f"the evaluation of {self._ticket.checkpoint} failed (exit status {self._process.returncode}): "
            f"{self._last_words()}"
        )

    def _last_words(self) -> str:
        output = redact_text(self._read(self._output).decode(errors="replace"))  # before a cut halves a secret
        return "\n".join(output.strip().splitlines()[-SHOWN_LINES:]) or "it said nothing"

    def _read(self, file: IO[bytes]) -> bytes:
        # Without moving the place where the process writes, which is shared with it.
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        for file in (self._process.stdin, self._exchange, self._output):
            file.close()
