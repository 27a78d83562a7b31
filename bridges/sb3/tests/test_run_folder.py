"""What a run leaves in its folder, and what the command line makes of it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest

from hookline.cli import main
from hookline_sb3 import HooklineCallback


@pytest.fixture(scope="module")
def folder(models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of DQN on CartPole with five plugins."""
    path = tmp_path_factory.mktemp("runs") / "cartpole"
    settings = models.only(
        metrics={"progress": "off"}, checkpoint={}, evaluation={"n_examples": 2}, status={}, **{"verify-length": {}}
    )
    model = models.make_model("DQN", "CartPole-v1", train_freq=4)
    with HooklineCallback(path, settings=settings, save_replay_buffer=True, config={"note": "a try"}) as hookline:
        model.learn(120, callback=hookline)
    return path


def test_the_config_says_what_was_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert (config["host"], config["algorithm"], config["environment"]) == ("stable-baselines3", "DQN", "CartPole-v1")
    assert (config["total_timesteps"], config["note"]) == (120, "a try")
    assert (config["model"]["gamma"], config["model"]["buffer_size"]) == (0.99, 64)
    assert {"checkpoint", "evaluation", "metrics", "status", "verify-length"} <= config["plugins"].keys()


def test_the_database_has_numbers_of_rollouts_updates_and_evaluations(folder: Path) -> None:
    with sqlite3.connect(folder / "stats.sqlite") as database:
        names = {name for (name,) in database.execute("SELECT DISTINCT name FROM metrics")}
        ((steps,),) = database.execute("SELECT max(step) FROM metrics WHERE name = 'train/loss'")
    assert {"train/loss", "rollout/mean_reward", "rollout/exploration_rate"} <= names
    assert any(name.endswith("eval/CartPole-v1/mean_reward") for name in names)
    assert steps == 112  # 28 updates of four steps


def test_the_last_checkpoint_has_the_replay_buffer(folder: Path) -> None:
    newest = max((folder / "checkpoints").glob("epoch-*"))
    assert newest.name == "epoch-000029"
    assert (newest / "plugins.safetensors").stat().st_size > 64 * 4 * 4


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), " ".join((captured.out + captured.err).split())


def test_the_command_line_lists_and_reports_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = command(capsys, "runs", str(folder.parent))
    assert (code, "cartpole" in output) == (0, True)
    code, _ = command(capsys, "report", str(folder), "--output", str(folder / "page.html"))
    assert code == 0
    assert "train/loss" in (folder / "page.html").read_text()


def test_an_evaluation_by_hand_says_why_it_cannot_be_had(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = command(capsys, "evaluate", str(folder))
    assert code != 0
    assert "was trained by stable-baselines3: its model is made by your own script" in output
