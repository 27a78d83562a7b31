"""`CheckpointHook`: the worker's state in a file, every so many rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hookline.hooks.periodic import PeriodicHook
from hookline_hookspecs import HookContext
from hookline_hookspecs.files import write_atomically

__all__ = ["CheckpointHook"]


class CheckpointHook(PeriodicHook):
    """Writes what `worker.state_dict()` gives to `directory/worker-0-step-000100.json`.

    A file is complete or is not there: it is written beside its place, made durable, and renamed.
    """

    critical = True

    def __init__(self, frequency: int, directory: str | Path, start_step: int = 0) -> None:
        super().__init__(frequency, start_step)
        self.directory = Path(directory)

    def run(self, context: HookContext) -> dict[str, Any]:
        self.directory.mkdir(parents=True, exist_ok=True)
        index = context.worker.config.worker_index
        path = self.directory / f"worker-{index}-step-{context.step:06d}.json"
        write_atomically(path, json.dumps(context.worker.state_dict()), durable=True)
        return {"checkpoint.path": str(path)}
