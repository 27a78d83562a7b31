"""The program of the child process: `python -m hookline_evaluation.out_of_process.child_main CHECKPOINT EXCHANGE`.

EXCHANGE is the descriptor of an unnamed file. It has the request as JSON, which is overwritten by the outcome as JSON,
with a newline at the end. The process exits when its stdin is closed, so that it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from hookline_evaluation.out_of_process.evaluate_checkpoint import evaluate_checkpoint
from hookline_evaluation.out_of_process.jobs import request_from_json
from hookline_hookspecs.logs import hide_secrets_in_tracebacks

__all__ = ["main"]


def main(checkpoint: Path, descriptor: int) -> None:
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
