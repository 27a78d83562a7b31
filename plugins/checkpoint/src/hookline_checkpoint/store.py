"""How checkpoints lie on disk.

    RUN/checkpoints/epoch-000010/
        policy.safetensors      the arrays of `policy.state_dict()`, by their keys
        optimizer.safetensors   the arrays of `optimizer.state_dict()`, by their paths
        state.json              all that is not an array
        manifest.json           what the other three files must be

A folder is named after the epoch that had ended when it was saved. `state.json` is an object with

    run_id      the run that saved it
    counters    epoch (the last one that is complete, 0-based), step, agent_step
    metrics     the evaluation scores it was saved with, by name
    policy      the description of the policy's structure, null for a run without one (see `hookline_checkpoint.tree`)
    optimizer   the same of the optimizer
    plugins     what plugins returned from `save_plugin_state`, by plugin name

and `manifest.json` is {"format": "hookline-checkpoint", "version": 1, "files": {NAME: {"size": bytes, "sha256": hex}}}.
There is no pickle: reading a checkpoint runs no code of whoever wrote it.

**Valid** is a folder whose manifest names the three other files, each with the size and hash that it has. Nothing else
decides: not the folder's age, nor which other folders there are.

**Writing.** The files are written to `.staging-epoch-000010`, each followed by an fsync, the manifest last; the staging
folder is fsynced and renamed to its name, and `checkpoints/` is fsynced. Only then are older checkpoints removed,
each first renamed to `.discarded-...`, so that no half-removed folder goes by the name of a checkpoint. Where the
name is taken, as by a damaged checkpoint that a resumed run has come past again, the old folder is first renamed to
`epoch-000010.replaced`, which still is a checkpoint to a reader, and removed once the new one is in its place. So at
every moment the newest checkpoint that was ever complete, or one newer, is there and valid. What a kill leaves behind
begins with a dot, is never read, and is removed by the next save.

**Reading.** The newest folder, by its epoch, that is valid. Each file is read once: what was hashed is what is used.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.numpy

from hookline_checkpoint.durable import sync_folder, write_durably
from hookline_checkpoint.errors import CheckpointError, InvalidCheckpointError
from hookline_checkpoint.tree import join_tree, split_tree

__all__ = ["Contents", "find_checkpoints", "newest_valid", "prune", "read_checkpoint", "write_checkpoint"]

FORMAT: Final = "hookline-checkpoint"
VERSION: Final = 1

POLICY: Final = "policy.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
STATE: Final = "state.json"
MANIFEST: Final = "manifest.json"

NAME: Final = re.compile(r"epoch-(\d{6,})(\.replaced)?")
STAGING: Final = ".staging-"
DISCARDED: Final = ".discarded-"


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds."""

    run_id: str = ""
    epoch: int = 0
    """The last epoch that is complete."""
    step: int = 0
    agent_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    policy: Any = None
    """What `state_dict()` gave, None for a run without a policy."""
    optimizer: Any = None
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)


def find_checkpoints(folder: Path) -> list[Path]:
    """What goes by the name of a checkpoint, valid or not, newest first."""
    if not folder.is_dir():
        return []
    named = [(match, path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    # The one that was put in a replaced one's place comes before it.
    named.sort(key=lambda found: (int(found[0][1]), found[0][2] is None), reverse=True)
    return [path for _, path in named]


def newest_valid(folder: Path) -> tuple[tuple[Path, Contents] | None, list[InvalidCheckpointError]]:
    """The newest valid checkpoint with its contents, None when there is none, and why newer ones are not valid."""
    skipped: list[InvalidCheckpointError] = []
    for path in find_checkpoints(folder):
        try:
            return (path, read_checkpoint(path)), skipped
        except InvalidCheckpointError as error:
            skipped.append(error)
    return None, skipped


# -- writing ----------------------------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, contents: Contents) -> tuple[Path, int]:
    """Write a checkpoint, and return its path and its size in bytes once it is durable."""
    files = _serialize(contents)
    path = folder / f"epoch-{contents.epoch:06d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        staging = folder / f"{STAGING}{path.name}"
        try:
            _fill(staging, files)
            _put_in_place(staging, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be saved: {error}. Earlier checkpoints are untouched; "
            "make room or give the folder the permissions it needs, then resume"
        ) from error
    return path, sum(map(len, files.values()))


def _serialize(contents: Contents) -> dict[str, bytes]:
    """All files by name, in the order in which they are written."""
    policy, policy_description = split_tree(contents.policy, "the policy's state_dict()")
    optimizer, optimizer_description = split_tree(contents.optimizer, "the optimizer's state_dict()")
    state = {
        "run_id": contents.run_id,
        "counters": {"epoch": contents.epoch, "step": contents.step, "agent_step": contents.agent_step},
        "metrics": contents.metrics,
        "policy": policy_description,
        "optimizer": optimizer_description,
        "plugins": contents.plugins,
    }
    files = {
        POLICY: safetensors.numpy.save(policy),
        OPTIMIZER: safetensors.numpy.save(optimizer),
        STATE: json.dumps(state, allow_nan=False).encode(),
    }
    entries = {name: {"size": len(data), "sha256": _sha256(data)} for name, data in files.items()}
    manifest = {"format": FORMAT, "version": VERSION, "files": entries}
    return {**files, MANIFEST: json.dumps(manifest, indent=2).encode()}


def _fill(staging: Path, files: dict[str, bytes]) -> None:
    staging.mkdir()
    for name, data in files.items():
        write_durably(staging / name, data)
    sync_folder(staging)


def _put_in_place(staging: Path, path: Path) -> None:
    replaced = path.with_name(f"{path.name}.replaced")
    if path.exists():
        if replaced.exists():
            _discard(replaced)
        path.rename(replaced)
    staging.rename(path)
    sync_folder(path.parent)
    sync_folder(path.parent.parent)  # the folder of all checkpoints may be as new as the checkpoint
    if replaced.exists():
        _discard(replaced)


def prune(newest: Path, keep_last: int) -> None:
    """Remove what is older than a durable checkpoint, but for the last few, of which it is one itself."""
    found = find_checkpoints(newest.parent)
    for path in found[found.index(newest) + keep_last :]:
        _discard(path)


def _discard(path: Path) -> None:
    discarded = path.with_name(f"{DISCARDED}{path.name}")
    shutil.rmtree(discarded, ignore_errors=True)
    path.rename(discarded)
    shutil.rmtree(discarded)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.startswith((STAGING, DISCARDED)):
            shutil.rmtree(path)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_checkpoint(path: Path) -> Contents:
    """The contents of a checkpoint, or an error that says why it is not valid."""
    try:
        return _parse(dict(_read_files(path)))
    except InvalidCheckpointError as error:
        raise InvalidCheckpointError(f"{path}: {error}") from error


def _read_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Each file by name, once it is known to be what the manifest says."""
    entries = _read_manifest(path)
    for name in (POLICY, OPTIMIZER, STATE):
        data = _read(path / name)
        match entries.get(name):
            case {"size": int(size), "sha256": str(sha256)}:
                if len(data) != size:
                    raise InvalidCheckpointError(f"{name} has {len(data)} bytes, its manifest says {size}")
                if _sha256(data) != sha256:
                    raise InvalidCheckpointError(f"{name} is damaged: its hash is not the one in the manifest")
            case _:
                raise InvalidCheckpointError(f"{MANIFEST} does not give the size and hash of {name}")
        yield name, data


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = _parse_json(_read(path / MANIFEST), MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidCheckpointError(f"{MANIFEST} is not the manifest of a checkpoint")
    if manifest.get("version") != VERSION:
        raise InvalidCheckpointError(f"its format has version {manifest.get('version')!r}, this reader knows {VERSION}")
    entries = manifest.get("files")
    return entries if isinstance(entries, dict) else {}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidCheckpointError(f"{path.name} is missing") from None
    except OSError as error:
        raise InvalidCheckpointError(f"{path.name} cannot be read: {error.strerror}") from error


def _parse_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InvalidCheckpointError(f"{name} is not JSON: {error}") from error


def _parse(files: dict[str, bytes]) -> Contents:
    state = _parse_json(files[STATE], STATE)
    try:
        return Contents(
            run_id=state["run_id"],
            **{name: int(state["counters"][name]) for name in ("epoch", "step", "agent_step")},
            metrics=state["metrics"],
            policy=join_tree(state["policy"], safetensors.numpy.load(files[POLICY])),
            optimizer=join_tree(state["optimizer"], safetensors.numpy.load(files[OPTIMIZER])),
            plugins=state["plugins"],
        )
    except safetensors.SafetensorError as error:
        raise InvalidCheckpointError(f"its arrays cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{STATE} is not the state of a checkpoint: {error!r}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
