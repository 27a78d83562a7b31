"""Finds a run's newest checkpoint, and the run of a checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from hookline_evaluation.errors import EvaluationError

__all__ = ["counters_of", "find_checkpoint", "policy_files", "run_of"]

POLICY: Final = "policy.safetensors"
CONFIG: Final = "config.json"
MANIFEST: Final = "manifest.json"

_NAME = re.compile(r"epoch-(\d+)")


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder itself, or the newest checkpoint of a run's folder."""
    if not path.is_dir():
        raise EvaluationError(f"there is no folder {path}: give the folder of a run or of one of its checkpoints")
    if any(file.is_file() for file in policy_files(path)):
        return path
    folder = path / "checkpoints"
    # The manifest is written last, so a folder without one is incomplete.
    found = [own for own in folder.glob("epoch-*") if _NAME.fullmatch(own.name) and (own / MANIFEST).is_file()]
    if not found:
        raise EvaluationError(f"{path} has no checkpoint: there is no {POLICY} in it and no checkpoint in {folder}")
    return max(found, key=lambda own: int(own.name.removeprefix("epoch-")))


def policy_files(checkpoint: Path) -> list[Path]:
    """The files with the policy's weights: the shards of a large one, else a single file."""
    return sorted(checkpoint.glob("policy-*-of-*.safetensors")) or [checkpoint / POLICY]


def run_of(checkpoint: Path) -> Path:
    """The folder of a checkpoint's run, which has a `config.json`."""
    for folder in checkpoint.resolve().parents:
        if (folder / CONFIG).is_file():
            return folder
    raise EvaluationError(f"{checkpoint} is not in the folder of a run: none of its parent folders has a {CONFIG}")


def counters_of(checkpoint: Path) -> dict[str, Any]:
    """The epoch and step of a checkpoint. Empty if it does not have them."""
    try:
        counters = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["counters"]
        return {"epoch": int(counters["epoch"]), "step": int(counters["step"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
