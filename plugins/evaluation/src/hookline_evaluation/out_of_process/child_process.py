"""Evaluates a checkpoint in a child process while training goes on.

The child process is `python -m hookline_evaluation.out_of_process.child_process CHECKPOINT EXCHANGE`. EXCHANGE is the
descriptor of an unnamed file. It has the request as JSON, which is overwritten by the outcome as JSON, with a newline
at the end. The child exits when its stdin is closed, so that it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.evaluate_checkpoint import evaluate_checkpoint
from hookline_evaluation.out_of_process.jobs import EvaluationJob, EvaluationOutcome, request_from_json, request_to_json
from hookline_hookspecs.logs import hide_secrets_in_tracebacks
from hookline_hookspecs.redaction import redact_text

__all__ = ["ChildEvaluation"]

SHOWN_LINES = 5
"""How many of the last output lines of a failed process go into the error."""


class ChildEvaluation:
    """Starts the child process at once. Request, outcome and output are in unnamed temporary files."""

    def __init__(self, job: EvaluationJob, timeout_seconds: float) -> None:
        self._job = job
        self._timeout = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._exchange = tempfile.TemporaryFile()  # noqa: SIM115 - open until `stop`
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._exchange.write(json.dumps(request_to_json(job.request)).encode())
        self._exchange.flush()
        descriptor = self._exchange.fileno()
        checkpoint = str(job.checkpoint.resolve())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hookline_evaluation.out_of_process.child_process", checkpoint, str(descriptor)],
            stdin=subprocess.PIPE,  # never written to; it closes when this process ends, and then the child exits
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

    def outcome(self) -> EvaluationOutcome:
        # An outcome that ends in a newline is complete, however the process ended.
        content = self._read(self._exchange)
        if content.endswith(b"\n"):
            return EvaluationOutcome.from_json(json.loads(content))
        if self._process.poll() is None:
            raise EvaluationError(f"the evaluation of {self._job.checkpoint} took more than {self._timeout:g} s")
        raise EvaluationError(
            f"the evaluation of {self._job.checkpoint} failed (exit status {self._process.returncode}): "
            f"{self._last_lines()}"
        )

    def _last_lines(self) -> str:
        # Redacted first, since a cut could leave half of a secret.
        output = redact_text(self._read(self._output).decode(errors="replace"))
        return "\n".join(output.strip().splitlines()[-SHOWN_LINES:]) or "it has no output"

    def _read(self, file: IO[bytes]) -> bytes:
        # `pread` does not move the file position, which the child process shares.
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        for file in (self._process.stdin, self._exchange, self._output):
            file.close()


def main(checkpoint: Path, descriptor: int) -> None:
    """The program of the child process."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "r+b") as exchange:
        exchange.seek(0)
        outcome = evaluate_checkpoint(checkpoint, request_from_json(json.load(exchange)))
        exchange.seek(0)
        exchange.truncate()
        exchange.write(json.dumps(outcome.to_json(), allow_nan=False).encode() + b"\n")


def _end_with_standard_input() -> None:
    # Not through `sys.stdin`, whose lock would still be held when the interpreter exits.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    hide_secrets_in_tracebacks()
    main(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # the outcome is written, and a normal exit with torch and JAX loaded is slow
