"""The README is true: its code runs, its commands work, its settings are accepted."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=500, check=False)


def test_the_loop_of_your_own_leaves_the_files_that_the_readme_names(tmp_path: Path) -> None:
    loop = next(block for block in blocks("python") if "open_session" in block)
    result = run(sys.executable, "-c", loop, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "runs" / "my-run"
    assert {path.name for path in folder.iterdir()} >= {"stats.sqlite", "status.json", "heartbeat", "checkpoints"}
    with closing(sqlite3.connect(folder / "stats.sqlite")) as database:
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


def commands() -> list[str]:
    lines = [line.partition(" #")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line]


def test_every_command_works_in_the_order_of_the_readme(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in commands():
        if line.startswith("hookline "):
            command = shlex.split(line)
            if line.startswith("hookline train") and "--epochs" not in line:
                command += ["--epochs", "2"]  # to the end it would take half a minute
            result = run(*command, cwd=tmp_path)
            assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
            assert result.stdout.strip(), line
    assert (tmp_path / "runs" / "pole" / "report.html").exists()


@pytest.mark.skipif(sys.prefix != str(ROOT / ".venv"), reason="make would set up an environment of its own")
@pytest.mark.parametrize(
    ("target", "arguments", "expected"),
    [
        ("demo", "--epochs 1 --run-dir {folder}/demo", "report"),
        ("test", "--collect-only -q hookspecs/tests/test_markers.py", "test_markers.py"),
    ],
)
def test_the_two_commands_of_make_work(target: str, arguments: str, expected: str, tmp_path: Path) -> None:
    result = run("make", target, f"ARGS={arguments.format(folder=tmp_path)}", cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert expected in result.stdout


def test_no_command_of_the_readme_is_left_out() -> None:
    tested = (
        "hookline ",
        "make demo",
        "make test",
        "pip uninstall hookline-status",
    )  # the last one in test_toggling.py
    assert [line for line in commands() if not line.startswith(tested)] == []


def test_what_the_readme_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_table_of_events_has_all_events_and_their_kinds() -> None:
    from hookline import PluginManager

    section = README.partition("## The events")[2].partition("##")[0]
    for name, event in PluginManager().events.items():
        assert f"`{name}`" in section
        if event.kind == "decide":
            assert f"`{name}` *decide*" in section
