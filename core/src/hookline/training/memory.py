"""How a training process uses memory: what the garbage collector scans, and what the allocator keeps."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["gc_freeze", "keep_freed_memory"]

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's `mallopt`."""

LARGEST_KEPT: Final = 1 << 30
"""Bytes of the largest tensor whose memory is kept."""


@contextmanager
def gc_freeze() -> Iterator[Callable[[], None]]:
    """Yields a function. Its first call excludes all existing objects from garbage collection until the exit.

    Frameworks create half a million objects. Scanning them takes a sixth of a second, again and again during training.
    The objects that a run itself allocates are few and quick to scan.
    """
    # Objects that the user's code has frozen must stay frozen at the exit.
    nothing_was_frozen = gc.get_freeze_count() == 0
    is_frozen = False

    def freeze() -> None:
        nonlocal is_frozen
        if nothing_was_frozen and not is_frozen:
            is_frozen = True
            gc.freeze()

    try:
        yield freeze
    finally:
        if is_frozen:
            gc.unfreeze()


def keep_freed_memory() -> None:
    """Have glibc keep the memory of freed tensors for the next ones.

    By default it returns that of large ones to the system at once, which must clear the pages before it hands them out
    again. Training on a CPU then spends up to a quarter of its time there. Variables such as `MALLOC_TRIM_THRESHOLD_`
    in the environment take precedence. Other C libraries are left alone.
    """
    is_glibc = hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names
    if is_glibc and not any(name.startswith("MALLOC_") for name in os.environ):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
