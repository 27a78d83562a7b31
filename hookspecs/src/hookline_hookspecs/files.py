"""Writes files atomically: a reader sees the old or the new file, and so does the next process after a kill."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

__all__ = ["sync_folder", "write_atomically"]

SUFFIX: Final = ".new"


def write_atomically(path: Path, data: str | bytes, *, durable: bool = False) -> None:
    """Write a temporary file and rename it to `path`. Also removes temporary files of killed processes.

    :param data: text is written as UTF-8.
    :param durable: fsync the file and its folder, so that it survives a power cut.
    """
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{SUFFIX}")
    try:
        with temporary.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that files created, renamed or removed in it stay so after a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    prefix = f".{path.name}."
    for beside in path.parent.iterdir():
        if beside.name.startswith(prefix) and beside.name.endswith(SUFFIX):
            process, _, thread = beside.name[len(prefix) : -len(SUFFIX)].partition("-")
            if process.isdecimal() and thread.isdecimal() and not _is_another_writer(int(process), int(thread)):
                with contextlib.suppress(OSError):  # it may belong to another user, which does no harm
                    beside.unlink()


def _is_another_writer(process: int, thread: int) -> bool:
    if process == os.getpid():
        return thread != threading.get_ident()
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # the process exists, but belongs to another user
    return True
