"""The names of folders and files of checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = [
    "DISCARDED",
    "FILES",
    "MANIFEST",
    "OPTIMIZER",
    "POLICY",
    "STAGING",
    "STATE",
    "find_checkpoints",
    "name_of_epoch",
]

FORMAT: Final = "hookline-checkpoint"
VERSION: Final = 1

POLICY: Final = "policy.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
STATE: Final = "state.json"
MANIFEST: Final = "manifest.json"
FILES: Final = (POLICY, OPTIMIZER, STATE, MANIFEST)

NAME: Final = re.compile(r"epoch-(\d{6,18})(\.replaced)?", re.ASCII)
STAGING: Final = ".staging-"
DISCARDED: Final = ".discarded-"


def name_of_epoch(epoch: int) -> str:
    return f"epoch-{epoch:06d}"


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
