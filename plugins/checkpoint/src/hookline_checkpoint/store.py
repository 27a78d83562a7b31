"""How checkpoints lie on disk.

    RUN/checkpoints/epoch-000010/
        policy.safetensors      the arrays of `policy.state_dict()`, by their keys
        optimizer.safetensors   the arrays of `optimizer.state_dict()`, by their paths
        plugins.safetensors     the arrays that plugins saved, by their paths; not there if there are none
        state.json              all that is not an array
        manifest.json           what the other files must be

A folder is named after the epoch that had ended when it was saved. `state.json` is an object with

    run_id      the run that saved it
    counters    epoch (the last one that is complete, 0-based), step, agent_step
    metrics     the evaluation scores it was saved with, by name
    config      the configuration of the run, in which secrets are redacted
    policy      the description of the policy's structure, null for a run without one (see `hookline_checkpoint.tree`)
    optimizer   the same of the optimizer, or of a dictionary with one entry for each where there are several
    plugins     what plugins returned from `save_plugin_state`, by plugin name; the trainer is one of them, with random
                generators, the order of the data, the curriculum and the environments
    plugins_with_arrays     the names of those of them that are a description, with arrays in `plugins.safetensors`

and `manifest.json` is {"format": "hookline-checkpoint", "version": 1, "files": {NAME: {"size": bytes, "sha256": hex}}}.
The version is 2 where there are arrays of plugins, so that a release that knows of none leaves such a checkpoint alone.
There is no pickle: reading a checkpoint runs no code from it. No name in a file is ever used as a path, and
no symbolic link below `checkpoints/` is followed: reading and removing stay within the folder.

**Valid** is a folder whose manifest names `policy.safetensors`, `optimizer.safetensors` and `state.json`, and in which
each file that the manifest names has the size and hash that it gives. Nothing else decides: not the folder's age, nor
which other folders there are.

**Writing.** The files are written to `.staging-epoch-000010`, each followed by an fsync, the manifest last; the staging
folder is fsynced. What plugins want to be on disk before the checkpoint counts is waited for
(`state.shared[PLUGIN]["before_checkpoint"]`). The folder is renamed to its name, and `checkpoints/` is fsynced. Only
then are older checkpoints removed, each first renamed to `.discarded-...`, so that no half-removed folder goes by the
name of a checkpoint. Where the name is taken, as by a damaged checkpoint that a resumed run has come past again, the
old folder is first renamed to `epoch-000010.replaced`, which still is a checkpoint to a reader, and removed once the
new one is in its place. So at every moment the newest checkpoint that was ever complete, or one newer, is there and
valid. What a kill leaves behind begins with a dot, is never read, and is removed by the next save. A folder has one
writer: rank 0 of one run.

**Reading** (`hookline_checkpoint.reading`). The newest folder, by its epoch, that is valid. Each file is read once:
what was hashed is what is used. A version later than this one is no damage: where any checkpoint of a folder has one,
no run begins or goes on there, and nothing in the folder is changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hookline_checkpoint.durable import write_durably
from hookline_checkpoint.errors import CheckpointError
from hookline_checkpoint.layout import (
    DISCARDED,
    FORMAT,
    MANIFEST,
    PLUGINS,
    STAGING,
    WITH_PLUGIN_ARRAYS,
    WITHOUT_PLUGIN_ARRAYS,
    name_of_epoch,
)
from hookline_checkpoint.snapshot import Snapshot
from hookline_hookspecs.files import sync_folder

__all__ = ["Saved", "discard", "write_checkpoint"]


class Saved(NamedTuple):
    """A checkpoint that is durable."""

    path: Path
    size_bytes: int
    fingerprint: str
    """The hash of its manifest, and so of all of it."""


def write_checkpoint(folder: Path, snapshot: Snapshot, before_it_counts: Callable[[], object] = lambda: None) -> Saved:
    """Write a checkpoint, and return once it is durable.

    :param before_it_counts: called when all files are durable, and the folder does not have its name yet.
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
            f"checkpoint {path} cannot be saved: {error}. Earlier checkpoints are untouched; "
            "make room or give the folder the permissions it needs, then resume"
        ) from error
    return Saved(path, size, fingerprint)


def _fill(staging: Path, snapshot: Snapshot) -> tuple[int, str]:
    staging.mkdir()
    files = {name: write_durably(staging / name, data) for name, data in snapshot.files.items()}
    entries = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
    version = WITH_PLUGIN_ARRAYS if PLUGINS in files else WITHOUT_PLUGIN_ARRAYS
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
    sync_folder(path.parent.parent)  # the folder of all checkpoints may be as new as the checkpoint
    if replaced.exists():
        discard(replaced)


def discard(path: Path) -> None:
    """Remove a checkpoint, which at no moment is there by half."""
    discarded = path.with_name(f"{DISCARDED}{path.name}")
    _remove(discarded)
    path.rename(discarded)
    _remove(discarded)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.startswith((STAGING, DISCARDED)):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove whatever goes by a name of ours. Of a link it is the link: what it points to is not ours."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
