"""A host for tests: repeats what the policy says, and does as it is told. It needs no package."""

import os
import signal
import sys
import time
from pathlib import Path

from hookline_host import LimitReached, serve


class Echo:
    limits = {"max_turns": 3, "max_new_tokens": 12, "seconds": 60.0}  # noqa: RUF012

    def __init__(self, greeting="Say something.", fault=None, hangs_until=None):
        if fault is not None:
            exec(fault)
        self.greeting = greeting
        self.hangs_until = hangs_until

    def draw(self, seed, held_out):
        return {"answer": "bye", "metadata": {"seed": seed % 1000, "held_out": held_out}}

    def converse(self, problem):
        print("this goes to stderr")
        self.hang_once()
        response = yield [("system", self.greeting), ("user", str(problem["metadata"]["seed"]))]
        count = 0
        while response != problem["answer"]:
            count += 1
            self.obey(response)
            try:
                response = yield f"You said {response}."
            except LimitReached as limit:
                return count / 10 if str(limit) == "max_turns" else None
        return 1.0

    def hang_once(self):
        """Hang in the first conversation, which makes a file that says so to the others, and to later processes."""
        if self.hangs_until is not None:
            try:
                Path(self.hangs_until).touch(exist_ok=False)
            except FileExistsError:
                return
            time.sleep(1000)

    def obey(self, response):
        if response == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif response == "exit":
            print("leaving now", file=sys.stderr, flush=True)
            os._exit(3)
        elif response == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1000)  # another thread may take the signal, while this one goes on for a moment
        elif response == "wait":
            time.sleep(1000)
        elif response == "raise":
            raise ZeroDivisionError("told to")


if __name__ == "__main__":
    serve(Echo)
