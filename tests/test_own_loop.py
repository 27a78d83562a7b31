"""`examples/own_loop.py`: a user's own loop, with all installed plugins for about ten lines."""

from __future__ import annotations

import json
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from hookline import session
from hookline.plugin_manager.settings import Settings
from hookline.testing import check_emitter

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_loop.py"


def run(code: list[str], cwd: Path) -> str:
    result = subprocess.run([sys.executable, *code], capture_output=True, text=True, cwd=cwd, timeout=500, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


class Run(NamedTuple):
    folder: Path
    printed: str


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("own-loop")
    return Run(folder / "runs" / "mine", run([str(EXAMPLE), "runs/mine"], folder))


def test_the_loop_learns_and_leaves_what_plugins_make_of_it(example: Run) -> None:
    folder, printed = example
    assert {path.name for path in folder.iterdir()} >= {"stats.sqlite", "status.json", "heartbeat", "checkpoints"}
    with closing(sqlite3.connect(folder / "stats.sqlite")) as database:
        losses = database.execute("SELECT value FROM metrics WHERE name = 'train/loss' ORDER BY step").fetchall()
    assert len(losses) >= 12 * 16
    assert losses[-1] < losses[0]
    assert json.loads((folder / "status.json").read_text())
    assert (folder / "checkpoints" / "epoch-000009" / "manifest.json").exists()
    assert printed.count("epoch") == 12


def test_it_keeps_the_event_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_session, folders = session.open_session, (tmp_path / str(number) for number in count())

    def run(plugin: object) -> None:
        own = partial(open_session, plugins={"recorder": plugin}, settings=Settings(allowed={}))
        monkeypatch.setattr(session, "open_session", own)
        runpy.run_path(str(EXAMPLE))["main"](str(next(folders)))

    check_emitter(run)


def test_without_the_marked_lines_it_is_the_same_loop(example: Run, tmp_path: Path) -> None:
    lines = EXAMPLE.read_text().splitlines()
    marked = [line for line in lines if line.endswith("# +")]
    assert len(marked) <= 10
    plain = []
    for line in lines:
        if "session.epochs()" in line:
            plain.append(line.replace("session.epochs()", "range(EPOCHS)"))
        elif "with open_session" in line:
            plain.append(line[: len(line) - len(line.lstrip())] + "if True:")
        elif line not in marked:
            plain.append(line)
    (tmp_path / "plain.py").write_text("\n".join(plain))
    assert run(["plain.py"], tmp_path) == example.printed
