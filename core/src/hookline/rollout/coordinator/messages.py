"""What a coordinator and its worker processes tell each other: JSON for the facts and NumPy's own format for arrays.

A message is one NumPy archive without pickles, its facts among the arrays. The two functions that a worker starts with
travel as bytes, pickled by cloudpickle, from the coordinator to the process that it has started itself.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hookline.rollout.errors import RolloutError
from hookline_hookspecs import Episode

__all__ = ["Message", "episode_message", "episode_of", "pack", "unpack"]

FACTS: Final = "facts"
PREFIX: Final = "array/"
"""Before the name of each array, which may be any text."""


@dataclass(frozen=True)
class Message:
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def pack(message: Message) -> bytes:
    facts = np.frombuffer(json.dumps(message.facts).encode(), np.uint8)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, facts=facts, **{PREFIX + name: a for name, a in message.arrays.items()})
    return archive.getvalue()


def unpack(data: bytes) -> Message:
    """Read a message; raises `RolloutError` for bytes that are none."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        facts = json.loads(arrays.pop(FACTS).tobytes())
        if not isinstance(facts, dict):
            raise ValueError("the facts are no object")
        return Message(facts, {name.removeprefix(PREFIX): array for name, array in arrays.items()})
    except Exception as error:  # NumPy, zipfile and zlib each have several for data that is damaged
        raise RolloutError(
            f"{len(data)} bytes between coordinator and worker are not a message: {type(error).__name__}: {error}"
        ) from error


def episode_message(number: int, episode: Episode) -> Message:
    """An episode on its way to the coordinator."""
    facts = {
        "prompt": episode.prompt,
        "response": episode.response,
        "reference": episode.reference,
        "reward": episode.reward,
        "metadata": episode.metadata,
    }
    try:
        json.dumps(facts)
    except (TypeError, ValueError, RecursionError) as error:
        raise RolloutError(
            f"episode {number}: what reset() gave as info cannot travel between processes: {error}"
        ) from error
    arrays = dict(episode.arrays)
    if episode.logprobs is not None:
        arrays["logprobs"] = episode.logprobs
    return Message(facts, arrays)


def episode_of(message: Message) -> Episode:
    """An episode that has arrived; raises `RolloutError` when the message does not hold one."""
    facts, arrays = message.facts, dict(message.arrays)
    logprobs = arrays.pop("logprobs", None)
    try:
        return Episode(
            prompt=_of(str, facts["prompt"]),
            response=_of(str, facts["response"]),
            reference=facts["reference"],
            reward=float(facts["reward"]),
            logprobs=logprobs,
            arrays=arrays,
            metadata=_of(dict, facts["metadata"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RolloutError(f"a worker's message is not an episode: {type(error).__name__}: {error}") from error


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} in place of a {kind.__name__}")
    return value
