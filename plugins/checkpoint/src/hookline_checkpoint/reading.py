"""Reads checkpoints, and finds the newest valid one. The format is described in `hookline_checkpoint.store`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from hookline_checkpoint.arrays import StoredArray, check_header, read_arrays
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.errors import CheckpointError, InvalidCheckpointError, NewerFormatError
from hookline_checkpoint.layout import (
    FORMAT,
    MANIFEST,
    OPTIMIZER,
    PLUGINS,
    POLICY_INDEX,
    STATE,
    VERSION,
    WITHOUT_PLUGIN_ARRAYS,
    find_checkpoints,
    policy_files,
)
from hookline_checkpoint.tree import join_tree

__all__ = ["Loaded", "newest_valid", "read_checkpoint", "read_metrics", "refuse_newer_formats"]

MANIFEST_LIMIT: Final = 100_000
"""Largest size of a manifest in bytes. A real one has about five hundred."""
STATE_LIMIT: Final = 2**30
"""Largest size of a JSON file in bytes. It has no arrays."""
MAX_COUNT: Final = 2**63 - 1
"""Largest value of a counter: a signed 64-bit integer."""


@dataclass(frozen=True)
class Loaded:
    """A valid checkpoint with its contents."""

    path: Path
    contents: Contents
    size_bytes: int
    fingerprint: str
    """The hash of its manifest, which has the hashes of all other files."""


def newest_valid(folder: Path) -> tuple[Loaded | None, list[InvalidCheckpointError]]:
    """The newest valid checkpoint, or None, and the errors of newer ones that are not valid."""
    skipped: list[InvalidCheckpointError] = []
    for path in find_checkpoints(folder):
        try:
            return read_checkpoint(path), skipped
        except InvalidCheckpointError as error:
            skipped.append(error)
    return None, skipped


def refuse_newer_formats(folder: Path) -> None:
    """Raise an error if any checkpoint in a folder has a newer format version than this release can read."""
    for path in find_checkpoints(folder):
        with contextlib.suppress(InvalidCheckpointError):
            _read_entries(path)


def _read_entries(path: Path) -> tuple[bytes, dict[str, Any]]:
    """A checkpoint's manifest as bytes, and its entries by file name."""
    manifest = _read_file(path / MANIFEST, limit=MANIFEST_LIMIT)
    try:
        return manifest, _parse_manifest(manifest)
    except NewerFormatError as error:
        raise NewerFormatError(f"{path}: {error}") from error


def read_checkpoint(path: Path) -> Loaded:
    """Read a checkpoint. Raises `InvalidCheckpointError` if it is not valid."""
    try:
        manifest, entries = _read_entries(path)
        verified = _Verified(path, entries)
        contents = _parse(verified)
        return Loaded(path, contents, len(manifest) + verified.size, hashlib.sha256(manifest).hexdigest())
    except (InvalidCheckpointError, MemoryError) as error:
        named = InvalidCheckpointError(f"{path}: {error or 'there is not enough memory to read it'}")
        named.path = path
        raise named from error


class _Verified:
    """The files of a checkpoint. Each is checked when it is read, and is kept in memory no longer than its arrays."""

    def __init__(self, path: Path, entries: dict[str, Any]) -> None:
        self._path = path
        self.entries = entries
        self.size = 0
        """The bytes that were read."""

    def read(self, name: str) -> bytes:
        data = _read_verified(self._path / name, self.entries)
        self.size += len(data)
        return data

    def arrays(self, *names: str) -> dict[str, StoredArray]:
        """The arrays of all these files, by name."""
        return {name: array for file in names for name, array in read_arrays(self.read(file)).items()}


def read_metrics(path: Path) -> dict[str, float]:
    """The scores that a checkpoint was saved with. Empty if they cannot be read."""
    try:
        state = _parse_json(_read_verified(path / STATE, _read_entries(path)[1]), STATE)
        return {name: float(score) for name, score in state["metrics"].items()}
    except (CheckpointError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def _read_verified(path: Path, entries: dict[str, Any]) -> bytes:
    """The contents of a file, checked against the size and hash in the manifest."""
    name = path.name
    match entries.get(name):
        case {"size": int(size), "sha256": str(sha256)}:
            data = _read_file(path, size, limit=STATE_LIMIT if name.endswith(".json") else None)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise InvalidCheckpointError(f"{name} is damaged: its hash is not the one in the manifest")
            return data
    raise InvalidCheckpointError(f"{MANIFEST} does not give the size and hash of {name}")


def _read_file(path: Path, expected_size: int | None = None, *, limit: int | None) -> bytes:
    """The bytes of a regular file. Symbolic links and pipes are refused.

    The size is checked before reading, since a sparse file can claim any size.

    :param limit: the largest allowed size; None for a file of arrays, whose header gives its size.
    """
    name = path.name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a path alone cannot be opened without following links
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidCheckpointError(f"{name} is not a file")
            if expected_size is not None and found.st_size != expected_size:
                raise InvalidCheckpointError(f"{name} has {found.st_size} bytes, its manifest says {expected_size}")
            if limit is not None and found.st_size > limit:
                raise InvalidCheckpointError(f"{name} has {found.st_size} bytes, more than {limit}")
            if limit is None:
                _check_header(file, name, found.st_size)
            return file.read()
    except MemoryError:
        raise InvalidCheckpointError(f"{name} is larger than the available memory") from None
    except FileNotFoundError:
        raise InvalidCheckpointError(f"{name} is missing") from None
    except OSError as error:
        reason = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise InvalidCheckpointError(f"{name} cannot be read: {reason}") from error


def _check_header(file: BinaryIO, name: str, size: int) -> None:
    try:
        check_header(file, size)
    except InvalidCheckpointError as error:
        raise InvalidCheckpointError(f"{name} is damaged: {error}") from error


def _parse_manifest(data: bytes) -> dict[str, Any]:
    manifest = _parse_json(data, MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidCheckpointError(f"{MANIFEST} is not the manifest of a checkpoint")
    version = manifest.get("version")
    if type(version) is int and version > VERSION:
        raise NewerFormatError(
            f"it has format version {version}, and this hookline-checkpoint reads up to version {VERSION}. Nothing was "
            "changed. Upgrade with pip install -U hookline-checkpoint, or give the run another folder"
        )
    if type(version) is not int or version < WITHOUT_PLUGIN_ARRAYS:
        raise InvalidCheckpointError(f"its format version is {version!r}, this release reads {VERSION}")
    entries = manifest.get("files")
    return entries if isinstance(entries, dict) else {}


def _parse_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(f"{name} is not JSON: {error}") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not valid in JSON")


def _parse(files: _Verified) -> Contents:
    state = _parse_json(files.read(STATE), STATE)
    policy = files.arrays(*policy_files(files.entries))
    if POLICY_INDEX in files.entries:
        files.read(POLICY_INDEX)
    optimizer = files.arrays(OPTIMIZER)
    of_plugins = files.arrays(PLUGINS) if PLUGINS in files.entries else {}
    try:
        return Contents(
            run_id=str(state["run_id"]),
            **{name: _counter(state["counters"][name]) for name in ("epoch", "step", "agent_step")},
            metrics={str(name): _score(score) for name, score in state["metrics"].items()},
            config=dict(state["config"]),
            policy=join_tree(state["policy"], policy),
            optimizer=join_tree(state["optimizer"], optimizer),
            plugins=_join_plugins(state, of_plugins),
        )
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{STATE} is not the state of a checkpoint: {error!r}") from error


def _join_plugins(state: dict[str, Any], arrays: dict[str, StoredArray]) -> dict[str, dict[str, Any]]:
    """What plugins saved, by plugin name."""
    described = state.get("plugins_with_arrays", ())
    return {
        str(plugin): dict(join_tree(saved, arrays) if plugin in described else saved)
        for plugin, saved in state["plugins"].items()
    }


def _counter(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{value!r:.50} is not a valid counter")
    return value


def _score(value: Any) -> float:
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"{value!r:.50} is not a finite score")
    return score
