"""The README is true: its code runs, its commands work, its settings are accepted."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=100, check=False)


def test_the_loop_of_your_own_leaves_the_files_that_the_readme_names(tmp_path: Path) -> None:
    loop = next(block for block in blocks("python") if "open_session" in block)
    result = run(sys.executable, "-c", loop, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "runs" / "my-run"
    assert {path.name for path in folder.iterdir()} >= {"stats.sqlite", "status.json", "heartbeat", "checkpoints"}
    with sqlite3.connect(folder / "stats.sqlite") as database:
        (count,) = database.execute("SELECT count(*) FROM metrics WHERE name = 'train/loss'").fetchone()
    assert count >= 200


@pytest.mark.parametrize("block", blocks("python"))
def test_every_block_of_python_runs(block: str, tmp_path: Path) -> None:
    result = run(sys.executable, "-W", "error", "-c", block, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_plugin_in_ten_lines_does_what_it_says() -> None:
    from hookline import PluginManager
    from hookline_hookspecs import TrainerState

    namespace: dict[str, type] = {}
    exec(next(block for block in blocks("python") if "class NanGuard" in block), namespace)
    manager = PluginManager()
    manager.register(namespace["NanGuard"]())
    manager.emit.post_training_step(state=TrainerState(step=10, loss_stats={"train/loss": 0.5}), report_data={})
    with pytest.raises(FloatingPointError, match="not finite at step 20"):
        manager.emit.post_training_step(
            state=TrainerState(step=20, loss_stats={"train/loss": float("nan")}), report_data={}
        )


def test_the_settings_are_accepted_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(next(block for block in blocks("toml") if "[tool.hookline]" in block))
    result = run("hookline", "plugins", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "line",
    [line.partition("#")[0].strip() for block in blocks("") for line in block.splitlines() if "hookline " in line],
)
def test_every_command_works(line: str, tmp_path: Path) -> None:
    command = shlex.split(line.removeprefix(".venv/bin/"))
    result = run(*command, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip()
