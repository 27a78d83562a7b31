"""Writes checkpoints to disk. This is their format.

    RUN/checkpoints/epoch-000010/
        policy.safetensors      the arrays of `policy.state_dict()`, by their keys
        policy-00001-of-00002.safetensors, ..., policy.safetensors.index.json
                                in its place for a policy of more than 5 GB: the same in shards, and which array is in
                                which shard, as Hugging Face saves a model
        optimizer.safetensors   the arrays of `optimizer.state_dict()`, by their paths
        plugins.safetensors     the arrays that plugins saved, by their paths; not there if there are none
        state.json              everything that is not an array
        manifest.json           size and hash of the other files

A folder is named after the epoch that had ended when it was saved, 0-based: with `every = 10` the first is
`epoch-000009`. `state.json` is an object with

    run_id      the run that saved it
    counters    epoch (the last one that is complete, 0-based), step, agent_step
    metrics     the evaluation scores it was saved with, by name
    config      the config of the run, with secrets redacted
    policy      the description of the policy's structure, null for a run without one (see `hookline_checkpoint.tree`)
    optimizer   the same of the optimizer, or of a dictionary with one entry for each where there are several
    plugins     what plugins returned from `save_plugin_state`, by plugin name; the trainer is one of them, with random
                generators, the order of the data, the curriculum and the environments
    plugins_with_arrays     the names of those of them that are a description, with arrays in `plugins.safetensors`

and `manifest.json` is {"format": "hookline-checkpoint", "version": 1, "files": {NAME: {"size": bytes, "sha256": hex}}}.
The version is 2 if plugins saved arrays and 3 if the policy is in shards, so that an older release does not read such
a checkpoint without them.
There is no pickle, so reading a checkpoint runs no code from it. No name in a file is used as a path, and no symbolic
link below `checkpoints/` is followed, so reading and removing stay within the folder.

**Valid.** A checkpoint is valid if its manifest lists `policy.safetensors` or all of its shards,
`optimizer.safetensors` and `state.json`, and each listed file has its size and hash. Nothing else matters, neither the
folder's age nor other folders.

**Writing.**

1. The files are written to `.staging-epoch-000010` and fsynced, the manifest last. The staging folder is fsynced.
2. The callbacks `state.shared[PLUGIN]["before_checkpoint"]` of plugins are called. They return when their data is on
   disk.
3. The staging folder is renamed to `epoch-000010`, and `checkpoints/` is fsynced.
4. Older checkpoints are removed. Each is first renamed to `.discarded-...`, so that a half-removed folder is never
   read as a checkpoint.

If `epoch-000010` exists already, for example as a damaged checkpoint, it is first renamed to `epoch-000010.replaced`,
which readers still accept, and removed after step 3. So at any time the newest complete checkpoint, or a newer one, is
on disk and valid. What a kill leaves behind has a name with a leading dot, is never read, and is removed by the next
save. A folder has one writer, rank 0 of one run.

**Reading** (`hookline_checkpoint.reading`). The newest valid folder, by its epoch, is read. Each file is read once, so
the bytes that were hashed are the bytes that are used. A newer format version does not count as damage: if any
checkpoint in a folder has one, no run starts or resumes there, and nothing in the folder is changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.layout import (
    DISCARDED,
    FORMAT,
    MANIFEST,
    PLUGINS,
    POLICY_INDEX,
    STAGING,
    WITH_PLUGIN_ARRAYS,
    WITH_SHARDS,
    WITHOUT_PLUGIN_ARRAYS,
    name_of_epoch,
)
from hookline_checkpoint.snapshot import Snapshot
from hookline_hookspecs.files import sync_folder

__all__ = ["Saved", "discard", "write_checkpoint"]

PIECE: Final = 4 * 1024 * 1024
"""Bytes that are hashed and written at a time. Small enough to stay in the CPU cache from hash to write, and to let
other threads run in between."""


class Saved(NamedTuple):
    """A checkpoint that is durable."""

    path: Path
    size_bytes: int
    fingerprint: str
    """The hash of its manifest, which has the hashes of all other files."""


def write_checkpoint(folder: Path, snapshot: Snapshot, before_it_counts: Callable[[], object] = lambda: None) -> Saved:
    """Write a checkpoint, and return once it is durable.

    :param before_it_counts: called when all files are durable, before the folder gets its final name.
    """
    path = folder / name_of_epoch(snapshot.epoch)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        staging = folder / f"{STAGING}{path.name}"
        try:
            size, fingerprint = _fill(staging, snapshot)
            before_it_counts()
            _put_in_place(staging, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be saved: {error}. Earlier checkpoints are not changed. "
            "Free disk space or fix the folder's permissions, then resume"
        ) from error
    return Saved(path, size, fingerprint)


def _fill(staging: Path, snapshot: Snapshot) -> tuple[int, str]:
    staging.mkdir()
    files = {name: write_durably(staging / name, data) for name, data in snapshot.files.items()}
    entries = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
    version = WITH_PLUGIN_ARRAYS if PLUGINS in files else WITHOUT_PLUGIN_ARRAYS
    version = WITH_SHARDS if POLICY_INDEX in files else version
    manifest = {"format": FORMAT, "version": version, "files": entries}
    files[MANIFEST] = write_durably(staging / MANIFEST, [json.dumps(manifest, indent=2).encode()])
    sync_folder(staging)
    return sum(file.size for file in files.values()), files[MANIFEST].sha256


def _put_in_place(staging: Path, path: Path) -> None:
    replaced = path.with_name(f"{path.name}.replaced")
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        if replaced.exists():
            discard(replaced)
        path.rename(replaced)
    staging.rename(path)
    sync_folder(path.parent)
    sync_folder(path.parent.parent)  # since `checkpoints/` itself may be new
    if replaced.exists():
        discard(replaced)


def discard(path: Path) -> None:
    """Remove a checkpoint. A half-removed one never has the name of a checkpoint."""
    discarded = path.with_name(f"{DISCARDED}{path.name}")
    _remove(discarded)
    path.rename(discarded)
    _remove(discarded)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.startswith((STAGING, DISCARDED)):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file, a folder or a symbolic link, but not the target of the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Written(NamedTuple):
    """Size and hash of a written file."""

    size: int
    sha256: str


def write_durably(path: Path, data: Iterable[bytes | memoryview]) -> Written:
    """Write a new file and fsync it. Its name is durable only once its folder is fsynced too."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in _pieces(data):
            digest.update(piece)
            _write_all(descriptor, piece)
            size += len(piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Written(size, digest.hexdigest())


def _pieces(data: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for part in data:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]
