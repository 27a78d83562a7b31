"""Encodes an image as PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

__all__ = ["encode_png"]


def encode_png(frame: Any) -> bytes:
    """Encode a uint8 RGB array of shape (height, width, 3)."""
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
