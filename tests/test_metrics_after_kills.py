"""A run of a loop of its own, killed by SIGKILL and resumed: its database is that of a run that was never killed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

KILLS = (("step", 3), ("step", 9), ("saved", 9), ("step", 18), ("saved", 19))
"""How each life ends: at a step of an epoch, before there is a checkpoint and after it, or when a save has been told."""

TRAIN = """
import os, signal, sys, time
from pathlib import Path
import numpy
from hookline.session import open_session
from hookline_hookspecs import hookimpl

folder, resume, dies_at, dies_in = Path(sys.argv[1]), sys.argv[2] == "resume", sys.argv[3], int(sys.argv[4])


class Policy:
    def __init__(self):
        self.weight = numpy.zeros(3)

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, saved):
        self.weight = saved["weight"]


class Evaluates:
    @hookimpl
    def evaluate_policy(self, state):
        return {"eval/score": float(state.policy.weight[0]), "eval/constant": 1.0}

    @hookimpl
    def collect_metrics(self, state):
        return {"own/epoch": float(state.epoch)}


class Dies:
    after = ("checkpoint", "metrics", "evaluation")

    @hookimpl
    def on_checkpoint_saved(self, checkpoint):
        if dies_at == "saved" and checkpoint.epoch >= dies_in:
            os.kill(os.getpid(), signal.SIGKILL)

    @hookimpl
    def post_training_step(self, state):
        if dies_at == "step" and state.epoch == dies_in and state.step % 5 == 3:
            os.kill(os.getpid(), signal.SIGKILL)


with open_session(folder, policy=Policy(), total_epochs=32, resume=resume) as session:
    session.plugins.register(Evaluates(), "evaluates")
    session.plugins.register(Dies(), "dies")
    for epoch in session.epochs():
        session.begin_train_phase()
        for _ in range(5):
            session.begin_step()
            session.state.policy.weight += 1
            session.end_step({"train/loss": 1.0 / (1 + session.state.step)})
            time.sleep(0.001)
        session.end_train_phase()
"""

SETTINGS = """
disable = ["status"]
[plugins.checkpoint]
every = 5
[plugins.evaluation]
every = 5
[plugins.metrics]
system_every = 0
progress = "off"
"""


def train(folder: Path, *arguments: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", TRAIN, str(folder), *arguments],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode in (0, -9), run.stderr
    return run.returncode


def rows(folder: Path) -> Counter[tuple[int, str]]:
    """How often each number is there, by step and name, but for `run/started`, which each life has one of."""
    with closing(sqlite3.connect(folder / "stats.sqlite")) as connection:
        found: list[Any] = connection.execute("SELECT step, name FROM metrics WHERE name != 'run/started'").fetchall()
    return Counter(found)


def lose_newest_checkpoint(folder: Path) -> None:
    newest = max((folder / "checkpoints").glob("epoch-*"))
    (newest / "policy.safetensors").write_bytes(b"damaged")


@pytest.mark.timeout(900)
def test_a_run_that_was_killed_again_and_again_has_every_number_once(tmp_path: Path) -> None:
    (tmp_path / "hookline.toml").write_text(SETTINGS)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(whole, "anew", "never", "0") == 0
    for life, (moment, epoch) in enumerate(KILLS):
        assert train(killed, "resume" if life else "anew", moment, str(epoch)) == -9
    lose_newest_checkpoint(killed)
    assert train(killed, "resume", "never", "0") == 0
    expected, found = rows(whole), rows(killed)
    assert set(expected.values()) == {1}
    assert {name for _, name in expected} >= {"eval/score", "train/loss", "own/epoch", "run/completed"}
    assert sorted(expected - found) == [], "numbers are missing"
    assert sorted(found - expected) == [], "numbers are there that should not be, or more than once"
