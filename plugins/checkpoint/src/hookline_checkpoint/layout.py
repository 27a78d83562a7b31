"""The names of folders and files of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = [
    "DISCARDED",
    "MANIFEST",
    "OPTIMIZER",
    "OTHER_FILES",
    "PLUGINS",
    "POLICY",
    "POLICY_INDEX",
    "STAGING",
    "STATE",
    "find_checkpoints",
    "name_of_epoch",
    "name_of_shard",
    "policy_files",
]

FORMAT: Final = "hookline-checkpoint"
WITHOUT_PLUGIN_ARRAYS: Final = 1
WITH_PLUGIN_ARRAYS: Final = 2
WITH_SHARDS: Final = 3
VERSION: Final = WITH_SHARDS
"""The newest version of the format that this release reads."""

POLICY: Final = "policy.safetensors"
POLICY_INDEX: Final = "policy.safetensors.index.json"
"""There in place of `policy.safetensors` if the policy is in shards."""
POLICY_SHARD: Final = re.compile(r"policy-(\d{5})-of-(\d{5})\.safetensors", re.ASCII)
OPTIMIZER: Final = "optimizer.safetensors"
PLUGINS: Final = "plugins.safetensors"
"""There only where a plugin has saved arrays."""
STATE: Final = "state.json"
MANIFEST: Final = "manifest.json"

OTHER_FILES: Final = (POLICY_INDEX, OPTIMIZER, PLUGINS, STATE, MANIFEST)
"""All files but those that `policy_files` names. Not every checkpoint has them all."""

NAME: Final = re.compile(r"epoch-(\d{6,18})(\.replaced)?", re.ASCII)
STAGING: Final = ".staging-"
DISCARDED: Final = ".discarded-"


def name_of_epoch(epoch: int) -> str:
    return f"epoch-{epoch:06d}"


def name_of_shard(number: int, count: int) -> str:
    """The name of a shard of the policy. They are numbered from 1, as Hugging Face does."""
    return f"policy-{number:05d}-of-{count:05d}.safetensors"


def policy_files(names: Iterable[str]) -> list[str]:
    """The files of a checkpoint with the policy's arrays: one, or all shards if any of the names is one."""
    shards = [match for match in map(POLICY_SHARD.fullmatch, names) if match]
    count = max((int(match[2]) for match in shards), default=0)
    return [name_of_shard(number + 1, count) for number in range(count)] or [POLICY]


def find_checkpoints(folder: Path) -> list[Path]:
    """All folders with the name of a checkpoint, valid or not, newest first. Symbolic links are left out."""
    if not folder.is_dir():
        return []
    named = [
        (match, path)
        for path in folder.iterdir()
        if (match := NAME.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()
    ]
    # A checkpoint comes before the one of the same epoch that it replaces.
    named.sort(key=lambda found: (int(found[0][1]), found[0][2] is None), reverse=True)
    return [path for _, path in named]
