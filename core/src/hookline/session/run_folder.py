"""A run's folder belongs to one run at a time: it is claimed when the run begins, and says who has it.

RUN/config.json     what the run was told; that it is there makes the folder a run's
RUN/.lock           locked for as long as the run goes on, and gone with its process; names the process
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hookline.errors import HooklineError
from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact, redact_arguments

__all__ = ["RunFolderError", "claimed_run_folder", "holds_run", "read_config", "write_config"]

CONFIG: Final = "config.json"
LOCK: Final = ".lock"

_held: dict[Path, int] = {}
"""The descriptor of the lock of each folder that a run of this process has."""


class RunFolderError(HooklineError):
    """A folder cannot be this run's."""


def holds_run(folder: Path) -> bool:
    """Whether a run has begun in a folder."""
    return (folder / CONFIG).exists()


@contextmanager
def claimed_run_folder(folder: Path, *, resume: bool) -> Iterator[None]:
    """Have a folder to oneself.

    :param resume: the folder must hold a run; otherwise it must not.
    """
    with _named(f"the run's folder {folder} cannot be made"):
        path = folder.resolve()
        has_run = holds_run(path)
    if path in _held:
        raise RunFolderError(f"{folder} is in use by another run of this process: give this one a folder of its own")
    if resume and not has_run:
        found = "it holds no run" if path.exists() else "there is no such folder"
        raise RunFolderError(f"nothing to resume in {folder}: {found}. Leave out --resume to begin a run there")
    if has_run and not resume:
        raise RunFolderError(
            f"{folder} holds a run already: go on with it by --resume (resume=True), or give the new run another folder"
        )
    with _named(f"the run's folder {path} cannot be made"):
        path.mkdir(parents=True, exist_ok=True)
    with _locked(path, folder):
        yield


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write what the run in a folder was told; a reader never sees half of it."""
    with _named(f"{folder / CONFIG} cannot be written"):
        write_atomically(folder / CONFIG, json.dumps(redact(config), indent=2) + "\n")


def read_config(folder: Path) -> dict[str, Any]:
    """The config of the run in a folder."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{folder} holds no run: there is no {CONFIG} in it") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{folder / CONFIG} is not JSON: {error}") from error
    return config


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Say which file a system error is about: a full disk does not, and a path with a NUL is no path at all."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{what}: {error.strerror}") from error
    except ValueError as error:
        raise RunFolderError(f"{what}: {error}".replace("\0", "\\0")) from error


@contextmanager
def _locked(path: Path, folder: Path) -> Iterator[None]:
    with _named(f"the run's folder {folder} cannot be written to"):
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with _named(f"{path / LOCK} cannot be locked"):
            _lock(descriptor, folder)
        with _named(f"{path / LOCK} cannot be written"):
            os.truncate(descriptor, os.write(descriptor, _this_process().encode()))
    except BaseException:
        os.close(descriptor)
        raise
    _held[path] = descriptor
    try:
        yield
    finally:
        if _held.pop(path, None) is not None:  # otherwise this is a forked child, which has closed its own
            os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        # Of the open file, and not of the process: a process that reads or copies its own folder would lose that one.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 10_000, 0).decode(errors="replace").strip()
        raise RunFolderError(
            f"{folder} is in use by {owner or 'another process'}: "
            "stop that run, wait for its end, or give this one another folder"
        ) from None


def _close_in_child() -> None:
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


# The lock lives as long as any copy of its descriptor: a child that outlives a killed run must not have one. A program
# that a child executes has none either, since Python's descriptors are closed there.
os.register_at_fork(after_in_child=_close_in_child)


def _this_process() -> str:
    command = shlex.join([Path(sys.argv[0]).name, *redact_arguments(sys.argv[1:])])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} ({command}) since {since}\n"
