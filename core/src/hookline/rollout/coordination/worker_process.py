"""A worker process of the coordinator: `python -m hookline.rollout.coordination.worker_process`.

It reads messages from its standard input until that is closed, so it ends with whoever started it, however that ends.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, BinaryIO

from hookline.extras import require
from hookline.rollout.coordination.messages import Message, episode_message, read_message, write_message
from hookline.rollout.coordination.playing import play_episode

__all__ = ["main"]


def main() -> None:
    # What an environment prints must not end up among the messages.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        pass  # the coordinator is gone
    finally:
        answers.close()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    environment: Any = None
    policy: Any = None
    while (request := read_message(requests)) is not None:
        facts = request.facts
        try:
            if facts["do"] == "start":
                environment, policy = _start(request)
                answer = Message({"started": True})
            elif facts["do"] == "take_weights":
                policy.update_weights(dict(request.arrays), facts["version"])
                continue
            else:
                episode = play_episode(
                    environment,
                    policy,
                    kept=facts["kept"],
                    number=facts["episode"],
                    seed=facts["seed"],
                    max_steps=facts["max_steps"],
                )
                answer = episode_message(facts["episode"], facts["collection"], episode)
        except Exception as error:  # raised again by the coordinator
            answer = Message(
                {
                    "error": f"{type(error).__name__}: {error}",
                    "traceback": traceback.format_exc(),
                    "collection": facts.get("collection"),
                }
            )
        write_message(answers, answer)


def _start(request: Message) -> tuple[Any, Any]:
    cloudpickle = require("cloudpickle", "a rollout worker process")
    sys.path[:] = request.facts["path"]
    env_fn, policy_fn = cloudpickle.loads(request.code)
    return env_fn(), policy_fn()


if __name__ == "__main__":
    main()
