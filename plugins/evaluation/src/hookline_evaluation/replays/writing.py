"""Where replays lie: `replays/epoch-000009.jsonl`, with one episode to a line, and the page `epoch-000009.html`.

In a run that is evaluated by steps there may be several to an epoch: `epoch-000009-step-000120.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline_evaluation.replays.page import replay_page
from hookline_hookspecs.files import write_atomically
from hookline_hookspecs.redaction import redact

__all__ = ["write_replay"]


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
    """Write the records and their page; returns the path of the records. Each file is complete or is not there."""
    folder = run_dir / "replays"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epoch-{epoch:06d}{f'-step-{step:06d}' if by_steps else ''}.jsonl"
    records = redact(records)
    lines = [json.dumps({"epoch": epoch, "step": step, **record}, allow_nan=False) for record in records]
    page = replay_page(records, title=f"{run_id or 'run'}, epoch {epoch}, step {step}", scores=scores)
    write_atomically(path.with_suffix(".html"), page)
    write_atomically(path, "".join(line + "\n" for line in lines))
    return path
