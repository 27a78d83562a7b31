"""Two processes of one fit (DDP on gloo), which Lightning starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("tiny_fit.py")


def test_two_ranks_are_one_run_that_stops_and_resumes_as_one(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--ranks"]
    result = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for rank, own in enumerate(ranks):
        assert own["is_driver_told"] == (rank == 0)
        assert (own["stop_reason"], own["steps_when_stopped"]) == ("two epochs are enough", 6)
        assert len(own["whole"]) == 12  # 3 batches in each of 4 epochs
        assert own["resumed"] == own["whole"][6:]
    assert ranks[0]["whole"] != ranks[1]["whole"]  # each has data and dropout of its own
