"""Checkpoints of real runs are evaluated in a process of their own, by a server, and by hand."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import safetensors.torch
import torch

import hookline
from hookline.errors import HooklineError
from hookline.plugin_manager.settings import read_settings
from hookline_evaluation.command import evaluate

pytestmark = pytest.mark.timeout(900)
"""Processes of their own import three frameworks each, on machines that may have much else to do."""

TOKEN = "a-secret-that-stays-secret"
OPTIONS = ("evaluation.n_examples=4", "evaluation.replays=1", "evaluation.deadline_seconds=500")


class Evaluated(NamedTuple):
    """A run, and the scores in its state."""

    run_dir: Path
    scores: dict[str, float]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """A run of CartPole that a process of its own has evaluated in the end."""
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    settings = read_settings(option_arguments=["evaluation.mode=background", *OPTIONS])
    trainer = hookline.train("cartpole", run_dir=folder, epochs=2, settings=settings)
    return Evaluated(folder, trainer.state.eval_scores)


def test_a_run_may_be_evaluated_in_the_background(evaluated: Evaluated) -> None:
    assert evaluated.scores["eval/epoch"] == 1.0
    assert evaluated.scores["eval/cartpole/episodes"] == 4.0
    replays = evaluated.run_dir / "replays"
    (line,) = (replays / "epoch-000001.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["environment"], record["epoch"]) == ("CartPole-v1", 1)
    assert len(record["observations"]) == record["length"] == record["reward"]
    assert "<polyline" in (replays / "epoch-000001.html").read_text()


def test_the_command_gives_the_scores_that_the_run_has(
    evaluated: Evaluated, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(evaluated.run_dir, n_examples=4, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["checkpoint"] == str(evaluated.run_dir / "checkpoints" / "epoch-000001")
    assert told["epoch"] == 1
    assert told["scores"] == {name: evaluated.scores[name] for name in told["scores"]}
    assert "eval/cartpole/success_rate" in told["scores"]


def test_the_command_prints_a_table_of_one_checkpoint(evaluated: Evaluated, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(evaluated.run_dir / "checkpoints" / "epoch-000001", n_examples=4, lesson=("cartpole",))
    table = capsys.readouterr().out
    assert "eval/cartpole" in table
    assert f"{evaluated.scores['eval/cartpole/mean_reward']:.4g}" in table


def test_a_checkpoint_of_another_policy_is_an_error_that_says_so(evaluated: Evaluated, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "config.json").write_bytes((evaluated.run_dir / "config.json").read_bytes())
    (folder / "policy.safetensors").write_bytes(safetensors.torch.save({"other": torch.zeros(3)}))
    with pytest.raises(HooklineError, match=f"these weights do not fit the policy of the run in {tmp_path}"):
        evaluate(folder)


def test_a_damaged_checkpoint_is_an_error_that_says_so(evaluated: Evaluated, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "config.json").write_bytes((evaluated.run_dir / "config.json").read_bytes())
    (folder / "policy.safetensors").write_bytes(b"cut off")
    with pytest.raises(HooklineError, match=r"policy\.safetensors is damaged"):
        evaluate(folder)


@pytest.fixture
def server_url(evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of `hookline evaluate --serve`, for runs beside the one that was evaluated."""
    monkeypatch.setenv("HOOKLINE_EVALUATION_TOKEN", TOKEN)
    command = [
        sys.executable,
        "-m",
        "hookline",
        "evaluate",
        "--serve",
        "--port",
        "0",
        "--root",
        str(evaluated.run_dir.parent),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        yield address[0]
        process.send_signal(signal.SIGINT)


def test_a_run_may_be_evaluated_by_the_server(evaluated: Evaluated, server_url: str) -> None:
    assert httpx.get(f"{server_url}/evaluations/x").status_code == 401
    remote = evaluated.run_dir.parent / "remote"
    settings = read_settings(option_arguments=["evaluation.mode=remote", f"evaluation.url={server_url}", *OPTIONS])
    assert hookline.train("cartpole", run_dir=remote, epochs=2, settings=settings).state.eval_scores == evaluated.scores
    assert (remote / "replays" / "epoch-000001.html").exists()
    assert not [path for path in remote.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
