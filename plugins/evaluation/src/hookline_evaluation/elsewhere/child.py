"""What runs in the child process: `python -m hookline_evaluation.elsewhere.child FOLDER`.

FOLDER holds `ticket.json`, and gets `answer.json`. The process ends when its standard input does, so that it does not
outlive whoever waits for it, however that came to an end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from hookline_evaluation.elsewhere.evaluating import evaluate_checkpoint
from hookline_evaluation.elsewhere.messages import request_from_json
from hookline_hookspecs.files import write_atomically

__all__ = ["ANSWER", "TICKET", "main"]

TICKET = "ticket.json"
ANSWER = "answer.json"


def main(folder: Path) -> None:
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    ticket = json.loads((folder / TICKET).read_text(encoding="utf-8"))
    answer = evaluate_checkpoint(Path(ticket["checkpoint"]), request_from_json(ticket["request"]))
    write_atomically(folder / ANSWER, json.dumps(answer.to_json(), allow_nan=False))


def _end_with_standard_input() -> None:
    # Not by `sys.stdin`, whose lock would be held when the interpreter ends.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # the answer is there, and an interpreter full of frameworks takes its time to end
