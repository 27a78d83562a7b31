"""Writes replays as `replays/epoch-000009.jsonl`, one episode per line, and `.html`, and uploads them to wandb.

A run that is evaluated by steps may have several in one epoch: `epoch-000009-step-000120.jsonl`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline_evaluation.replays.page import replay_page
from hookline_evaluation.replays.records import ARRAYS
from hookline_hookspecs import ReplayRecord
from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact, redact_text

__all__ = ["upload_replay", "write_replay"]


def write_replay(
    run_dir: Path,
    records: Sequence[Mapping[str, Any]],
    *,
    run_id: str,
    epoch: int,
    step: int,
    scores: Mapping[str, float],
    by_steps: bool = False,
) -> Path:
    """Write the records and their page, each atomically. Returns the path of the records."""
    folder = run_dir / "replays"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epoch-{epoch:06d}{f'-step-{step:06d}' if by_steps else ''}.jsonl"
    safe = [_without_secrets({"epoch": epoch, "step": step, **record}) for record in records]
    title = f"{run_id or 'run'}, epoch {epoch}, step {step}"
    page = replay_page([record for record, _ in safe], title=title, scores=scores)
    write_atomically(path.with_suffix(".html"), page)
    write_atomically(path, "".join(f"{line}\n" for _, line in safe))
    return path


def _without_secrets(record: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The record without secrets, and as JSON. Its thousands of numbers are searched as text, since training waits."""
    others = redact({name: value for name, value in record.items() if name not in ARRAYS})
    safe = {name: others.get(name, value) for name, value in record.items()}
    line = json.dumps(safe, allow_nan=False)
    if redact_text(line) != line:
        safe = redact(record)
        line = json.dumps(safe, allow_nan=False)
    return safe, line


def upload_replay(run: Any, replay: ReplayRecord, run_id: str) -> None:
    """Add the records and their page to a wandb run as an artifact. Does nothing if `run` is None."""
    if run is None or replay.path is None:
        return
    import wandb

    # An artifact name may have letters, digits, dots, dashes and underscores.
    name = "replays-" + re.sub(r"[^\w.-]", "-", run_id or run.id, flags=re.ASCII)
    artifact = wandb.Artifact(name, type="replay", metadata={"step": replay.step, "episodes": replay.episodes})
    for path in (replay.path, replay.path.with_suffix(".html")):
        artifact.add_file(str(path), name=path.name)
    run.log_artifact(artifact, aliases=["latest", replay.path.stem])
