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

from hookline.plugins.errors import HooklineError
from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact_text

__all__ = ["RunFolderError", "claimed_run_folder", "read_config", "write_config"]

CONFIG: Final = "config.json"
LOCK: Final = ".lock"

_claimed_here: set[Path] = set()
"""The folders that runs of this process have. The lock keeps out other processes only."""


class RunFolderError(HooklineError):
    """A folder cannot be this run's."""


@contextmanager
def claimed_run_folder(folder: Path, *, resume: bool) -> Iterator[None]:
    """Have a folder to oneself.

    :param resume: the folder must hold a run; otherwise it must not.
    """
    path = folder.resolve()
    if path in _claimed_here:
        raise RunFolderError(f"{folder} is in use by another run of this process: give this one a folder of its own")
    has_run = (path / CONFIG).exists()
    if resume and not has_run:
        found = "it holds no run" if path.exists() else "there is no such folder"
        raise RunFolderError(f"nothing to resume in {folder}: {found}. Leave out --resume to begin a run there")
    if has_run and not resume:
        raise RunFolderError(
            f"{folder} holds a run already: go on with it by --resume (resume=True), or give the new run another folder"
        )
    _make(path)
    with _locked(path / LOCK, folder):
        _claimed_here.add(path)
        try:
            yield
        finally:
            _claimed_here.discard(path)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write what the run in a folder was told; whoever reads it never sees half of it."""
    write_atomically(folder / CONFIG, json.dumps(config, indent=2) + "\n")


def read_config(folder: Path) -> dict[str, Any]:
    """The config of the run in a folder."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{folder} holds no run: there is no {CONFIG} in it") from None
    except ValueError as error:
        raise RunFolderError(f"{folder / CONFIG} is not JSON: {error}") from error
    return config


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"the run's folder {path} cannot be made: {error.strerror}") from error


@contextmanager
def _locked(path: Path, folder: Path) -> Iterator[None]:
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"the run's folder {folder} cannot be written to: {error.strerror}") from error
    with file:
        try:
            # Of the process, and not of the descriptor: a forked child that outlives a killed run does not keep it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise RunFolderError(
                f"{folder} is in use by {file.read().strip() or 'another process'}: "
                "stop that run, wait for its end, or give this one another folder"
            ) from None
        file.truncate(0)
        file.write(_this_process())
        file.flush()
        yield


def _this_process() -> str:
    command = redact_text(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} ({command}) since {since}\n"
