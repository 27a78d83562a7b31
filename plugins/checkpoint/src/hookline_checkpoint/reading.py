"""Reads checkpoints, and finds the newest that is valid. The format is stated in `hookline_checkpoint.store`."""

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

from hookline_checkpoint.arrays import check_header, read_arrays
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.errors import CheckpointError, InvalidCheckpointError, NewerFormatError
from hookline_checkpoint.layout import (
    FORMAT,
    MANIFEST,
    OPTIMIZER,
    PLUGINS,
    POLICY,
    STATE,
    VERSION,
    WITH_PLUGIN_ARRAYS,
    WITHOUT_PLUGIN_ARRAYS,
    find_checkpoints,
)
from hookline_checkpoint.tree import join_tree

__all__ = ["Loaded", "newest_valid", "read_checkpoint", "read_metrics", "refuse_newer_formats"]

MANIFEST_LIMIT: Final = 100_000
"""A manifest has some five hundred bytes. What has more is something else, and is not read."""
STATE_LIMIT: Final = 2**30
"""Bytes of a `state.json`, which holds no arrays."""
GREATEST_COUNT: Final = 2**63 - 1
"""Of a counter: what is more no database and no framework can count with."""


@dataclass(frozen=True)
class Loaded:
    """A valid checkpoint, and what it holds."""

    path: Path
    contents: Contents
    size_bytes: int
    fingerprint: str
    """The hash of its manifest, and so of all of it."""


def newest_valid(folder: Path) -> tuple[Loaded | None, list[InvalidCheckpointError]]:
    """The newest valid checkpoint with its contents, None when there is none, and why newer ones are not valid."""
    skipped: list[InvalidCheckpointError] = []
    for path in find_checkpoints(folder):
        try:
            return read_checkpoint(path), skipped
        except InvalidCheckpointError as error:
            skipped.append(error)
    return None, skipped


def refuse_newer_formats(folder: Path) -> None:
    """Raise when any checkpoint in a folder has a later version of the format than this release knows."""
    for path in find_checkpoints(folder):
        with contextlib.suppress(InvalidCheckpointError):
            _read_entries(path)


def _read_entries(path: Path) -> tuple[bytes, dict[str, Any]]:
    """A checkpoint's manifest, and what it says of the files."""
    manifest = _read_file(path / MANIFEST, limit=MANIFEST_LIMIT)
    try:
        return manifest, _parse_manifest(manifest)
    except NewerFormatError as error:
        raise NewerFormatError(f"{path}: {error}") from error


def read_checkpoint(path: Path) -> Loaded:
    """A checkpoint with its contents, or an error that says why it is not valid."""
    try:
        manifest, entries = _read_entries(path)
        names = [POLICY, OPTIMIZER, STATE, *([PLUGINS] if PLUGINS in entries else [])]
        files = {name: _read_verified(path / name, entries) for name in names}
        size = len(manifest) + sum(map(len, files.values()))
        return Loaded(path, _parse(files), size, hashlib.sha256(manifest).hexdigest())
    except (InvalidCheckpointError, MemoryError) as error:
        named = InvalidCheckpointError(f"{path}: {error or 'it takes more memory than there is'}")
        named.path = path
        raise named from error


def read_metrics(path: Path) -> dict[str, float]:
    """The scores that a checkpoint was saved with; none when they cannot be read."""
    try:
        state = _parse_json(_read_verified(path / STATE, _read_entries(path)[1]), STATE)
        return {name: float(score) for name, score in state["metrics"].items()}
    except (CheckpointError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def _read_verified(path: Path, entries: dict[str, Any]) -> bytes:
    """A file, once it is known to be what the manifest says."""
    name = path.name
    match entries.get(name):
        case {"size": int(size), "sha256": str(sha256)}:
            data = _read_file(path, size, limit=STATE_LIMIT if name == STATE else None)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise InvalidCheckpointError(f"{name} is damaged: its hash is not the one in the manifest")
            return data
    raise InvalidCheckpointError(f"{MANIFEST} does not give the size and hash of {name}")


def _read_file(path: Path, expected_size: int | None = None, *, limit: int | None) -> bytes:
    """The bytes of a regular file: not of what a link points to, nor of a pipe without a writer.

    All that can be known of the file's size is held against it before it is read: a file may have any size and no data.

    :param limit: the most bytes that it may have; None for a file of arrays, whose header says how many it has.
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
                raise InvalidCheckpointError(f"{name} has {found.st_size} bytes, and {limit} are the most")
            if limit is None:
                _check_header(file, name, found.st_size)
            return file.read()
    except MemoryError:
        raise InvalidCheckpointError(f"{name} has more bytes than there is memory for") from None
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
            f"it needs a hookline-checkpoint that knows version {version} of the format, and this one knows {VERSION}. "
            "Nothing was changed. Upgrade with pip install -U hookline-checkpoint, or give the run another folder"
        )
    if version not in (WITHOUT_PLUGIN_ARRAYS, WITH_PLUGIN_ARRAYS):
        raise InvalidCheckpointError(f"its format has version {version!r}, this reader knows {VERSION}")
    entries = manifest.get("files")
    return entries if isinstance(entries, dict) else {}


def _parse_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(f"{name} is not JSON: {error}") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _parse(files: dict[str, bytes]) -> Contents:
    state = _parse_json(files[STATE], STATE)
    try:
        return Contents(
            run_id=str(state["run_id"]),
            **{name: _counter(state["counters"][name]) for name in ("epoch", "step", "agent_step")},
            metrics={str(name): _score(score) for name, score in state["metrics"].items()},
            config=dict(state["config"]),
            policy=join_tree(state["policy"], read_arrays(files[POLICY])),
            optimizer=join_tree(state["optimizer"], read_arrays(files[OPTIMIZER])),
            plugins=_join_plugins(state, files),
        )
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{STATE} is not the state of a checkpoint: {error!r}") from error


def _join_plugins(state: dict[str, Any], files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """What plugins saved, by plugin name."""
    arrays = read_arrays(files[PLUGINS]) if PLUGINS in files else {}
    described = state.get("plugins_with_arrays", ())
    return {
        str(plugin): dict(join_tree(saved, arrays) if plugin in described else saved)
        for plugin, saved in state["plugins"].items()
    }


def _counter(value: object) -> int:
    if type(value) is not int or not 0 <= value <= GREATEST_COUNT:
        raise ValueError(f"{value!r:.50} is no count")
    return value


def _score(value: Any) -> float:
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"{value!r:.50} is no score")
    return score
