"""`serve`: an environment in a process of its own, which answers questions as JSON lines on stdin and stdout.

This package needs nothing but Python: it runs with a Python that has the environment's library, and neither Hookline
nor its dependencies. docs/environments.md describes the protocol. A host of your own is a file like

    from hookline_host import serve

    class Echo:
        limits = {"max_turns": 3, "max_new_tokens": 64}

        def draw(self, seed, held_out):
            return {"answer": "hello", "metadata": {"seed": seed}}

        def converse(self, problem):
            response = yield "Say hello."                # or pairs: [("system", "Be polite."), ("user", "Say hello.")]
            while response != problem["answer"]:
                response = yield f"You said {response}."
            return 1.0

    serve(Echo)

`converse` is that of a text environment of Hookline. Conversations are played in threads, at the same time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Union

__all__ = ["LimitReached", "serve"]

THREADS = 64
"""Questions that are answered at the same time."""

Messages = Union[str, Sequence["tuple[str, str]"]]  # noqa: UP007 - also for older versions of Python
Conversation = Generator[Messages, str, Any]


class LimitReached(Exception):  # noqa: N818 - not an error
    """Raised in a conversation that has reached a limit. Catch it to return a reward for what there is."""


def serve(make_environment: Callable[..., Any]) -> None:
    """Answer questions until stdin ends. What the environment prints goes to stderr.

    :param make_environment: takes the environment's options by keyword, and returns the environment.
    """
    host = _Host()
    try:
        host.environment = make_environment(**(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}))
        host.say({"ready": True, "limits": dict(getattr(host.environment, "limits", {}))})
    except BaseException as error:
        host.say({"ready": False, "error": _described(error)})
        raise
    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin:
            question = json.loads(line)
            if question["do"] == "ping":  # answered at once, to show that the process does not hang
                host.say({"id": question["id"]})
            else:
                threads.submit(host.answer, question)
        os._exit(0)  # whatever the environment is still doing


class _Host:
    def __init__(self) -> None:
        self.environment: Any = None
        self._conversations: dict[int, Conversation] = {}
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._lock = threading.Lock()
        os.dup2(2, 1)

    def say(self, answer: dict[str, Any]) -> None:
        line = json.dumps(answer)
        with self._lock:
            self._answers.write(line + "\n")
            self._answers.flush()

    def answer(self, question: dict[str, Any]) -> None:
        try:
            self.say({"id": question.get("id"), **self._act(question)})
        except BaseException as error:
            traceback.print_exc()
            self.say({"id": question.get("id"), "error": _described(error)})

    def _act(self, question: dict[str, Any]) -> dict[str, Any]:
        if question["do"] == "draw":
            return {"problem": self.environment.draw(question["seed"], question["held_out"])}
        number = question["conversation"]
        if question["do"] == "begin":
            conversation = self.environment.converse(question["problem"])
            return self._step(number, conversation, lambda: next(conversation))
        conversation = self._conversations.pop(number)
        if question["do"] == "respond":
            return self._step(number, conversation, lambda: conversation.send(question["text"]))
        if question["do"] == "limit":
            try:
                return self._step(number, conversation, lambda: conversation.throw(LimitReached(question["limit"])))
            except LimitReached:
                return {"reward": 0.0}
        conversation.close()
        return {}

    def _step(self, number: int, conversation: Conversation, step: Callable[[], Messages]) -> dict[str, Any]:
        """The messages that a conversation yields next, or its reward."""
        try:
            messages = step()
        except StopIteration as end:
            return {"reward": end.value}
        self._conversations[number] = conversation
        pairs = [("user", messages)] if isinstance(messages, str) else messages
        return {"messages": [{"role": role, "text": text} for role, text in pairs]}


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
