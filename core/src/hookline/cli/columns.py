"""Rows of text in aligned columns, one line each. Importing rich for a table would take longer than all else."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["aligned", "print_lines"]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row. All columns but the last are as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines. In a terminal, one that is too long is cut off."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines:
        print(line if width is None or len(line) <= width else f"{line[: width - 1]}…")
