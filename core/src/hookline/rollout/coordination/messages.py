"""How a coordinator and its worker processes talk: JSON for the facts and NumPy's own format for arrays.

A message is three lengths of eight bytes (facts, arrays, code), then the three. Only `code` is a pickle: the two
functions that a worker starts with, which travel once, from the coordinator to the process it has started itself.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np

from hookline.rollout.errors import RolloutError
from hookline_hookspecs import Episode

__all__ = ["Message", "episode_message", "episode_of", "read_message", "write_message"]

HEADER: Final = struct.Struct("<QQQ")


@dataclass(frozen=True)
class Message:
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    code: bytes = b""


def write_message(stream: BinaryIO, message: Message) -> None:
    facts = json.dumps(message.facts).encode()
    arrays = io.BytesIO()
    if message.arrays:
        np.savez(arrays, allow_pickle=False, **message.arrays)
    packed = arrays.getvalue()
    stream.write(HEADER.pack(len(facts), len(packed), len(message.code)) + facts + packed + message.code)
    stream.flush()


def read_message(stream: BinaryIO) -> Message | None:
    """The next message, or None when the other side is gone."""
    header = _read(stream, HEADER.size)
    if header is None:
        return None
    parts = [_read(stream, length) for length in HEADER.unpack(header)]
    if None in parts:
        return None
    facts, packed, code = parts
    assert facts is not None
    arrays = {}
    if packed:
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    return Message(json.loads(facts), arrays, code or b"")


def _read(stream: BinaryIO, length: int) -> bytes | None:
    data = stream.read(length)
    return data if len(data) == length else None


def episode_message(number: int, collection: int, episode: Episode) -> Message:
    """An episode on its way to the coordinator."""
    facts = {
        "episode": number,
        "collection": collection,
        "prompt": episode.prompt,
        "response": episode.response,
        "reference": episode.reference,
        "reward": episode.reward,
        "metadata": episode.metadata,
    }
    try:
        json.dumps(facts)
    except TypeError as error:
        raise RolloutError(
            f"episode {number}: what reset() gave as info cannot travel between processes: {error}"
        ) from error
    arrays = {f"arrays/{name}": array for name, array in episode.arrays.items()}
    if episode.logprobs is not None:
        arrays["logprobs"] = episode.logprobs
    return Message(facts, arrays)


def episode_of(message: Message) -> Episode:
    """An episode that has arrived."""
    facts = message.facts
    prefix = "arrays/"
    return Episode(
        prompt=facts["prompt"],
        response=facts["response"],
        reference=facts["reference"],
        reward=facts["reward"],
        logprobs=message.arrays.get("logprobs"),
        arrays={name.removeprefix(prefix): a for name, a in message.arrays.items() if name.startswith(prefix)},
        metadata=facts["metadata"],
    )
