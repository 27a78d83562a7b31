"""Messages between a coordinator and its worker processes.

A message is a NumPy archive without pickles. It holds arrays, and JSON as one more array. Only `env_fn` and `policy_fn`
are pickled, with cloudpickle. The coordinator sends them as bytes to the processes that it starts.
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
"""The prefix of array names, so that no name can clash with `facts`."""


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
    """Read a message. Raises `RolloutError` for invalid bytes."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        facts = json.loads(arrays.pop(FACTS).tobytes())
        if not isinstance(facts, dict):
            raise ValueError("the facts are not a JSON object")
        return Message(facts, {name.removeprefix(PREFIX): array for name, array in arrays.items()})
    except Exception as error:  # NumPy, zipfile and zlib raise many kinds for damaged data
        raise RolloutError(
            f"{len(data)} bytes between coordinator and worker are not a message: {type(error).__name__}: {error}"
        ) from error


def episode_message(number: int, episode: Episode) -> Message:
    """Turn an episode into a message to the coordinator."""
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
        raise RolloutError(f"episode {number}: the info of reset() cannot be sent as JSON: {error}") from error
    arrays = dict(episode.arrays)
    if episode.logprobs is not None:
        arrays["logprobs"] = episode.logprobs
    return Message(facts, arrays)


def episode_of(message: Message) -> Episode:
    """Read the episode in a message. Raises `RolloutError` if there is none."""
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
        raise TypeError(f"expected a {kind.__name__}, got a {type(value).__name__}")
    return value
