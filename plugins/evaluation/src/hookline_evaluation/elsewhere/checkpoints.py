"""Which checkpoint is meant by the folder of a run, or of a checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from hookline_evaluation.errors import EvaluationError

__all__ = ["POLICY", "counters_of", "find_checkpoint", "run_of"]

POLICY: Final = "policy.safetensors"
CONFIG: Final = "config.json"
MANIFEST: Final = "manifest.json"

_NAME = re.compile(r"epoch-(\d+)")


def find_checkpoint(path: Path) -> Path:
    """The folder of the checkpoint that is meant: the one itself, or the newest of a run."""
    if not path.is_dir():
        raise EvaluationError(f"there is no folder {path}: give the folder of a run, or of one of its checkpoints")
    if (path / POLICY).is_file():
        return path
    folder = path / "checkpoints"
    # The manifest is written last: a folder without one is not complete.
    found = [own for own in folder.glob("epoch-*") if _NAME.fullmatch(own.name) and (own / MANIFEST).is_file()]
    if not found:
        raise EvaluationError(f"{path} holds no checkpoint: there is no {POLICY} in it, and none in {folder}")
    return max(found, key=lambda own: int(own.name.removeprefix("epoch-")))


def run_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to, known by its config."""
    for folder in checkpoint.resolve().parents:
        if (folder / CONFIG).is_file():
            return folder
    raise EvaluationError(f"{checkpoint} is in no run's folder: none of the folders it lies in has a {CONFIG}")


def counters_of(checkpoint: Path) -> dict[str, Any]:
    """The epoch and step that a checkpoint was saved at, as far as it says so."""
    try:
        counters = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["counters"]
        return {"epoch": int(counters["epoch"]), "step": int(counters["step"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
