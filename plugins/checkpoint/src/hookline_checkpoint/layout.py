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
    "PLUGINS",
    "POLICY",
    "STAGING",
    "STATE",
    "find_checkpoints",
    "name_of_epoch",
]

FORMAT: Final = "hookline-checkpoint"
WITHOUT_PLUGIN_ARRAYS: Final = 1
WITH_PLUGIN_ARRAYS: Final = 2
VERSION: Final = WITH_PLUGIN_ARRAYS
"""The newest version of the format that this release reads."""

POLICY: Final = "policy.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
PLUGINS: Final = "plugins.safetensors"
"""There only where a plugin has saved arrays."""
STATE: Final = "state.json"
MANIFEST: Final = "manifest.json"
FILES: Final = (POLICY, OPTIMIZER, PLUGINS, STATE, MANIFEST)

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
