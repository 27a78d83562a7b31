"""An episode as JSON-compatible data: one line of a replay.

lesson, reward              of every episode
prompt, response, reference of a text episode: the text before the first response, the last response, the answer
turns                       [{"role", "text"}], the whole conversation if it has more than a prompt and a response
ending                      why a conversation ended, if its environment did not end it as it should
group                       the number of the problem, shared by its samples
tokens                      [{"text", "logprob"}], one for each token that the policy sampled
verdict                     {"accepted", "reason", "result", "score", "message", "details"}, the result of verification
environment, length, truncated, observations, actions, rewards, frames
                            of a control episode; frames are PNG images as data URLs, if the environment renders
metadata                    the rest of the episode's metadata
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

from hookline_hookspecs import Episode

__all__ = ["ARRAYS", "encode_png", "episode_record", "plain"]

VERDICT: Final = {
    "accepted": "accepted",
    "reason": "rejection_reason",
    "result": "verification_result",
    "score": "verification_score",
    "message": "verification_message",
    "details": "verification_details",
}
"""Keys of a verdict, and the keys in an episode's metadata that they come from."""

ARRAYS: Final = {"observations": "obs", "actions": "actions", "rewards": "rewards"}
"""Keys of a record that have numbers only, and the episode's arrays that they come from."""

NOT_KEPT: Final = (
    "token_texts",
    "environment_name",
    "length",
    "truncated",
    "reward",
    "stop_reason",
    "failure",
    *VERDICT.values(),
)
"""Metadata that has its own key in a record, or is too large."""


def episode_record(lesson_id: str, episode: Episode) -> dict[str, Any]:
    """The record of an episode for a replay."""
    metadata = episode.metadata
    record: dict[str, Any] = {"lesson": lesson_id, "reward": plain(episode.reward)}
    if episode.prompt or episode.response:
        record |= {"prompt": episode.prompt, "response": episode.response, "reference": episode.reference}
        record["tokens"] = _tokens(episode)
        if episode.group is not None:
            record["group"] = episode.group
        if len(episode.turns) > 2:
            record["turns"] = [{"role": turn.role, "text": turn.text} for turn in episode.turns]
    if episode.ending:
        record["ending"] = episode.ending
    verdict = {name: plain(metadata[key]) for name, key in VERDICT.items() if key in metadata}
    if verdict:
        record["verdict"] = verdict
    if "environment_name" in metadata:
        record |= {
            "environment": metadata["environment_name"],
            "length": metadata.get("length"),
            "truncated": metadata.get("truncated"),
        }
    record |= {name: plain(episode.arrays[key]) for name, key in ARRAYS.items() if key in episode.arrays}
    if "frames" in episode.arrays:
        record["frames"] = [_image(frame) for frame in episode.arrays["frames"]]
    record["metadata"] = plain({name: value for name, value in metadata.items() if name not in NOT_KEPT})
    return record


def _tokens(episode: Episode) -> list[dict[str, Any]]:
    if episode.logprobs is None:
        return []
    logprobs = plain(episode.logprobs)
    texts = episode.metadata.get("token_texts") or [""] * len(logprobs)
    sampled = [True] * len(logprobs) if episode.mask is None else plain(episode.mask)
    tokens = zip(texts, logprobs, sampled, strict=False)
    return [{"text": text, "logprob": logprob} for text, logprob, is_sampled in tokens if is_sampled]


def _image(frame: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(encode_png(frame)).decode()


def encode_png(frame: Any) -> bytes:
    """Encode as PNG a uint8 RGB array of shape (height, width, 3)."""
    height, width, channels = frame.shape
    if channels != 3 or frame.nbytes != height * width * 3:
        raise ValueError(f"a frame must be a uint8 array of shape (height, width, 3), got shape {frame.shape}")
    pixels, row = frame.tobytes(), width * 3
    # Each row starts with its filter type, 0 for none.
    rows = b"".join(b"\0" + pixels[start : start + row] for start in range(0, height * row, row))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits per channel, RGB
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def plain(value: Any) -> Any:
    """The value as JSON-compatible data: arrays as lists, NaN and infinities as None, unknown objects as text.

    Floats are rounded to six digits, which is enough for a plot and makes the file a third as large.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _plain_array(value)
    return str(value)


def _plain_array(array: Any) -> Any:
    """An array as lists. Vectorised, since an episode has thousands of numbers and training waits."""
    import numpy  # imported here so that listing plugins does not import NumPy

    numbers = numpy.asarray(array)
    if numbers.dtype.kind in "biu":
        return numbers.tolist()
    if numbers.dtype.kind != "f" or numbers.ndim == 0:
        return plain(numbers.tolist())
    numbers = numbers.astype(numpy.float64)
    finite = numpy.isfinite(numbers)
    sizes = numpy.abs(numpy.where(finite & (numbers != 0), numbers, 1.0))
    # At most 300, to avoid an infinity. Smaller numbers become 0.
    unit = 10.0 ** numpy.minimum(5 - numpy.floor(numpy.log10(sizes)), 300)
    rounded: Any = numpy.rint(numpy.where(finite, numbers, 0.0) * unit) / unit
    if not finite.all():
        rounded = rounded.astype(object)
        rounded[~finite] = None
    return rounded.tolist()
