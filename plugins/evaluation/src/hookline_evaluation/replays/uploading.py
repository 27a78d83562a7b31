"""Replays as artifacts of the run in Weights & Biases, where the metrics plugin has one."""

from __future__ import annotations

import re

from hookline_hookspecs import ReplayRecord, TrainerState

__all__ = ["upload_replay"]


def upload_replay(state: TrainerState, replay: ReplayRecord) -> None:
    """Upload the records and their page. Without a run of wandb's there is nothing to do."""
    run = state.shared["metrics"].get("wandb_run")
    if run is None or replay.path is None:
        return
    import wandb

    # wandb takes letters, digits, dots, dashes and underscores in a name.
    name = "replays-" + re.sub(r"[^\w.-]", "-", state.run_id or run.id, flags=re.ASCII)
    artifact = wandb.Artifact(name, type="replay", metadata={"step": replay.step, "episodes": replay.episodes})
    for path in (replay.path, replay.path.with_suffix(".html")):
        artifact.add_file(str(path), name=path.name)
    run.log_artifact(artifact, aliases=["latest", replay.path.stem])
