"""Reads checkpoints, and finds the newest that is valid. The format is stated in `hookline_checkpoint.store`."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hookline_checkpoint.arrays import read_arrays
from hookline_checkpoint.contents import Contents
from hookline_checkpoint.errors import InvalidCheckpointError
from hookline_checkpoint.layout import FORMAT, MANIFEST, OPTIMIZER, POLICY, STATE, VERSION, find_checkpoints
from hookline_checkpoint.tree import join_tree

__all__ = ["Loaded", "newest_valid", "read_checkpoint", "read_metrics"]

MANIFEST_LIMIT: Final = 100_000
"""A manifest has some five hundred bytes. What has more is something else, and is not read."""


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


def read_checkpoint(path: Path) -> Loaded:
    """A checkpoint with its contents, or an error that says why it is not valid."""
    try:
        manifest = _read_file(path / MANIFEST)
        entries = _parse_manifest(manifest)
        files = {name: _read_verified(path / name, entries) for name in (POLICY, OPTIMIZER, STATE)}
        size = len(manifest) + sum(map(len, files.values()))
        return Loaded(path, _parse(files), size, hashlib.sha256(manifest).hexdigest())
    except InvalidCheckpointError as error:
        named = InvalidCheckpointError(f"{path}: {error}")
        named.path = path
        raise named from error


def read_metrics(path: Path) -> dict[str, float]:
    """The scores that a checkpoint was saved with; none when they cannot be read."""
    try:
        state = _parse_json(_read_verified(path / STATE, _parse_manifest(_read_file(path / MANIFEST))), STATE)
        return {name: float(score) for name, score in state["metrics"].items()}
    except (InvalidCheckpointError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def _read_verified(path: Path, entries: dict[str, Any]) -> bytes:
    """A file, once it is known to be what the manifest says."""
    name = path.name
    match entries.get(name):
        case {"size": int(size), "sha256": str(sha256)}:
            data = _read_file(path, size)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise InvalidCheckpointError(f"{name} is damaged: its hash is not the one in the manifest")
            return data
    raise InvalidCheckpointError(f"{MANIFEST} does not give the size and hash of {name}")


def _read_file(path: Path, expected_size: int | None = None) -> bytes:
    """The bytes of a regular file: not of what a link points to, nor of a pipe that nobody writes to."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a path alone cannot be opened without following links
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidCheckpointError(f"{path.name} is not a file")
            if expected_size is None and found.st_size > MANIFEST_LIMIT:
                raise InvalidCheckpointError(f"{path.name} has {found.st_size} bytes, too many for a manifest")
            if expected_size is not None and found.st_size != expected_size:
                raise InvalidCheckpointError(
                    f"{path.name} has {found.st_size} bytes, its manifest says {expected_size}"
                )
            return file.read()
    except FileNotFoundError:
        raise InvalidCheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        reason = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise InvalidCheckpointError(f"{path.name} cannot be read: {reason}") from error


def _parse_manifest(data: bytes) -> dict[str, Any]:
    manifest = _parse_json(data, MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidCheckpointError(f"{MANIFEST} is not the manifest of a checkpoint")
    if manifest.get("version") != VERSION:
        raise InvalidCheckpointError(f"its format has version {manifest.get('version')!r}, this reader knows {VERSION}")
    entries = manifest.get("files")
    return entries if isinstance(entries, dict) else {}


def _parse_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(f"{name} is not JSON: {error}") from error


def _parse(files: dict[str, bytes]) -> Contents:
    state = _parse_json(files[STATE], STATE)
    try:
        return Contents(
            run_id=str(state["run_id"]),
            **{name: int(state["counters"][name]) for name in ("epoch", "step", "agent_step")},
            metrics={str(name): float(score) for name, score in state["metrics"].items()},
            config=dict(state["config"]),
            policy=join_tree(state["policy"], read_arrays(files[POLICY])),
            optimizer=join_tree(state["optimizer"], read_arrays(files[OPTIMIZER])),
            plugins={str(plugin): dict(saved) for plugin, saved in state["plugins"].items()},
        )
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{STATE} is not the state of a checkpoint: {error!r}") from error
