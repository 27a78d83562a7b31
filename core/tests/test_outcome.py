"""What `hookline train` says in the end: how far the run came, and why no further."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

from rich.console import Console

from hookline.cli.train_output import print_outcome
from hookline.rollout import RolloutWorker, RolloutWorkerConfig
from hookline_hookspecs import TrainerState


@pytest.mark.parametrize(
    ("graduated", "reason", "expected"),
    [
        (False, None, "pole: 3 of 8 epochs, 12 gradient steps"),
        (True, None, "complete: all lessons have graduated"),
        (False, "told to", "ended early: told to"),
    ],
)
def test_a_run_that_ended_before_its_last_epoch_says_why(
    graduated: bool, reason: str | None, expected: str, tmp_path: Path
) -> None:
    worker = RolloutWorker(RolloutWorkerConfig())
    worker.curriculum.standings["cartpole"].graduated = graduated
    state = TrainerState(run_id="pole", epoch=2, step=12, total_epochs=8, stop_reason=reason)
    trainer: Any = SimpleNamespace(state=state, worker=worker)
    said = io.StringIO()
    print_outcome(trainer, tmp_path, Console(file=said, width=100))
    assert expected in said.getvalue()
    assert ("complete" in said.getvalue()) == graduated
