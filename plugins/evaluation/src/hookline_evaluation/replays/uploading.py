"""Replays as artifacts of the run in Weights & Biases, where the metrics plugin has one."""

from __future__ import annotations

import re
from typing import Any

from hookline_hookspecs import ReplayRecord

__all__ = ["upload_replay"]


def upload_replay(run: Any, replay: ReplayRecord, run_id: str) -> None:
    """Hand the records and their page to a run of wandb's, which uploads them meanwhile. Without one, do nothing."""
    if run is None or replay.path is None:
        return
    import wandb

    # wandb takes letters, digits, dots, dashes and underscores in a name.
    name = "replays-" + re.sub(r"[^\w.-]", "-", run_id or run.id, flags=re.ASCII)
    artifact = wandb.Artifact(name, type="replay", metadata={"step": replay.step, "episodes": replay.episodes})
    for path in (replay.path, replay.path.with_suffix(".html")):
        artifact.add_file(str(path), name=path.name)
    run.log_artifact(artifact, aliases=["latest", replay.path.stem])
