"""What runs in the child process: `python -m hookline_evaluation.elsewhere.child CHECKPOINT EXCHANGE`.

EXCHANGE is the descriptor of a file without a name, which nothing has to remove. It holds the request, and gets the
answer in its place: JSON, and a newline when it is complete. The process ends when its standard input does, so that it
does not outlive the one that waits for it, however that came to an end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from hookline_evaluation.elsewhere.evaluating import evaluate_checkpoint
from hookline_evaluation.elsewhere.messages import request_from_json
from hookline_hookspecs.logs import hide_secrets_in_tracebacks

__all__ = ["main"]


def main(checkpoint: Path, descriptor: int) -> None:
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "r+b") as exchange:
        exchange.seek(0)
        answer = evaluate_checkpoint(checkpoint, request_from_json(json.load(exchange)))
        exchange.seek(0)
        exchange.truncate()
        exchange.write(json.dumps(answer.to_json(), allow_nan=False).encode() + b"\n")


def _end_with_standard_input() -> None:
    # Not by `sys.stdin`, whose lock would be held when the interpreter ends.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    hide_secrets_in_tracebacks()
    main(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # the answer is there, and an interpreter full of frameworks takes its time to end
