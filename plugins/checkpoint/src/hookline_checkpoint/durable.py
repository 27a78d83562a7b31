"""Writes files so that they survive a power cut, and hashes them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Written", "write_durably"]

PIECE: Final = 4 * 1024 * 1024
"""Bytes that are hashed and written at a time. Small enough to stay in the CPU cache from hash to write, and to let
other threads run in between."""


class Written(NamedTuple):
    """Size and hash of a written file."""

    size: int
    sha256: str


def write_durably(path: Path, data: Iterable[bytes | memoryview]) -> Written:
    """Write a new file and fsync it. Its name is durable only once its folder is fsynced too."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in _pieces(data):
            digest.update(piece)
            _write_all(descriptor, piece)
            size += len(piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Written(size, digest.hexdigest())


def _pieces(data: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for part in data:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]
