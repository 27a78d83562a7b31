"""A run's folder belongs to one run at a time: the run locks it when it begins.

RUN/config.json     the config of the run; a folder with this file holds a run
RUN/.lock           locked while the run's process is alive; contains a description of the process
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
"""The lock's file descriptor for each folder that this process has locked."""


class RunFolderError(HooklineError):
    """A folder cannot be used for this run."""


def holds_run(folder: Path) -> bool:
    """Whether a run has begun in a folder."""
    return (folder / CONFIG).exists()


@contextmanager
def claimed_run_folder(folder: Path, *, resume: bool) -> Iterator[None]:
    """Create and lock a run's folder.

    :param resume: whether the folder must hold a run already; otherwise it must not.
    """
    with _named(f"the run's folder {folder} cannot be created"):
        path = folder.resolve()
        has_run = holds_run(path)
    if path in _held:
        raise RunFolderError(f"{folder} is in use by another run of this process: choose another folder")
    if resume and not has_run:
        found = "it holds no run" if path.exists() else "there is no such folder"
        raise RunFolderError(f"nothing to resume in {folder}: {found}. Leave out --resume to start a run there")
    if has_run and not resume:
        raise RunFolderError(
            f"{folder} holds a run already: resume it by --resume (resume=True), or choose another folder"
        )
    with _named(f"the run's folder {path} cannot be created"):
        path.mkdir(parents=True, exist_ok=True)
    with _locked(path, folder):
        yield


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the config of the run in a folder, atomically."""
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
    """Name the file of a system error, which does not always do so itself: a full disk, or a NUL in the path."""
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
        if _held.pop(path, None) is not None:  # a forked child has closed its copy
            os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        # flock belongs to the open file; lockf would be lost when the process closes any descriptor of it.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 10_000, 0).decode(errors="replace").strip()
        raise RunFolderError(
            f"{folder} is in use by {owner or 'another process'}: "
            "stop that run, wait for its end, or choose another folder"
        ) from None


def _close_in_child() -> None:
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


# The lock lives as long as any copy of its descriptor, so a child that outlives a killed run must not keep one.
# Programs that a child executes do not inherit it: Python opens descriptors as non-inheritable.
os.register_at_fork(after_in_child=_close_in_child)


def _this_process() -> str:
    command = shlex.join([Path(sys.argv[0]).name, *redact_arguments(sys.argv[1:])])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} ({command}) since {since}\n"
