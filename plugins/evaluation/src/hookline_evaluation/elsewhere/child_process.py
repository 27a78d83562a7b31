"""An evaluation in a process of its own, which loads the checkpoint: training goes on meanwhile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hookline_evaluation.elsewhere.child import ANSWER, TICKET
from hookline_evaluation.elsewhere.messages import Answer, Ticket, request_to_json
from hookline_evaluation.errors import EvaluationError
from hookline_hookspecs.redaction import redact_text

__all__ = ["ChildEvaluation"]

SHOWN_LINES = 5
"""How much of a failed process's last words goes into the error."""


class ChildEvaluation:
    """Started when made. All that passes between the processes is in files of a temporary folder."""

    def __init__(self, ticket: Ticket, timeout_seconds: float) -> None:
        self._ticket = ticket
        self._timeout = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="hookline-evaluation-"))
        told = {"checkpoint": str(ticket.checkpoint.resolve()), "request": request_to_json(ticket.request)}
        (self._folder / TICKET).write_text(json.dumps(told), encoding="utf-8")
        with (self._folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hookline_evaluation.elsewhere.child", str(self._folder)],
                stdin=subprocess.PIPE,  # held open for as long as this process lives, and never written to
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self, seconds: float) -> bool:
        left = max(0.0, self._deadline - time.monotonic())
        try:
            self._process.wait(min(seconds, left))
        except subprocess.TimeoutExpired:
            return time.monotonic() >= self._deadline
        return True

    def answer(self) -> Answer:
        # An answer that is there is complete, whatever became of the process after it.
        if (self._folder / ANSWER).exists():
            return Answer.from_json(json.loads((self._folder / ANSWER).read_text(encoding="utf-8")))
        if self._process.poll() is None:
            raise EvaluationError(f"the evaluation of {self._ticket.checkpoint} took more than {self._timeout:g} s")
        raise EvaluationError(
            f"the evaluation of {self._ticket.checkpoint} failed (exit status {self._process.returncode}): "
            f"{self._last_words()}"
        )

    def _last_words(self) -> str:
        lines = (self._folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return redact_text("\n".join(lines[-SHOWN_LINES:])) or "it said nothing"

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)
