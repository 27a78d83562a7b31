"""Hosts the sessions of an OpenEnv server: the policy's responses are the actions, the observations its messages."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

from . import Conversation, LimitReached, serve

__all__ = ["Sessions"]

NOT_SHOWN = ("done", "reward", "metadata")
"""Fields of an observation that are no part of it."""


class Sessions:
    """Each conversation is a session of its own on the server. Its reward is the sum of its steps' rewards.

    :param url: the server's address.
    :param action: the field of an action that takes the response. None for the only one that is a string.
    :param observation: the field of an observation that the policy reads. None for all of them, as JSON if there are
        several.
    :param prompt: what the policy reads before the first observation.
    :param role: the role of the observations.
    :param reset: further arguments of `reset`.
    """

    limits = {"max_turns": 8, "max_new_tokens": 256}  # noqa: RUF012 - read, never written

    def __init__(
        self,
        url: str,
        action: str | None,
        observation: str | None,
        prompt: str,
        role: str,
        reset: Mapping[str, Any],
    ) -> None:
        try:
            from openenv.core import GenericEnvClient
        except ImportError as error:
            raise RuntimeError(
                f"{sys.executable} cannot import openenv ({error}): install it there, or set the option python to a "
                "Python that has it"
            ) from error
        self._client = GenericEnvClient
        self._url = url
        with urllib.request.urlopen(f"{url.rstrip('/')}/schema", timeout=30) as answer:
            schema = json.load(answer)
        self._action = action or _only_text(schema["action"], "action")
        self._observation = observation
        self._prompt = prompt
        self._role = role
        self._reset = reset

    def draw(self, seed: int, held_out: bool) -> dict[str, Any]:
        return {"metadata": {"seed": 2 * (seed // 2) + held_out}}  # even for training, odd for evaluations

    def converse(self, problem: Mapping[str, Any]) -> Conversation:
        total = None
        with self._client(base_url=self._url).sync() as session:
            result = session.reset(seed=problem["metadata"]["seed"], **self._reset)
            before = self._prompt
            while not result.done:
                try:
                    response = yield self._messages(before, self._shown(result.observation))
                except LimitReached:
                    break
                before = ""
                result = session.step({self._action: response})
                if result.reward is not None:
                    total = (total or 0.0) + result.reward
        return total

    def _messages(self, before: str, observation: str) -> list[tuple[str, str]]:
        if self._role == "user":  # one message, since some chat templates reject two of one role
            return [("user", before + observation)]
        return [*([("user", before)] if before else []), (self._role, observation)]

    def _shown(self, observation: Mapping[str, Any]) -> str:
        shown = {name: value for name, value in observation.items() if name not in NOT_SHOWN}
        if self._observation is not None:
            return str(shown[self._observation])
        texts = list(shown.values())
        return str(texts[0]) if len(texts) == 1 else json.dumps(shown)


def _only_text(schema: Mapping[str, Any], what: str) -> str:
    """The only field of a JSON schema that is a string."""
    fields = [str(name) for name, own in schema.get("properties", {}).items() if own.get("type") == "string"]
    if len(fields) != 1:
        known = ", ".join(fields) or "none"
        raise ValueError(f"set the option {what} to a field of the server's {what}; those with text are {known}")
    return fields[0]


if __name__ == "__main__":
    serve(Sessions)
