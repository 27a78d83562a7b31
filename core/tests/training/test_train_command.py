"""`hookline train` when a run ends before its time: it says how to go on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("hookline_checkpoint")

from hookline.cli import main

if TYPE_CHECKING:
    from conftest import Site

ENDS_EARLY = """
import os, signal
from hookline import hookimpl
from hookline.training.tasks.arithmetic import addition

class Ends:
    critical = True

    def __init__(self, how):
        self.how = how

    @hookimpl(trylast=True)
    def on_epoch_start(self, state):
        if state.epoch == 2:
            self.how()

def task(how):
    def build(config, plugins):
        plugins.register(Ends(how))
        return addition.build(config, plugins)
    return build

fails = task(lambda: [][0])
terminated = task(lambda: os.kill(os.getpid(), signal.SIGTERM))
hung_up = task(lambda: os.kill(os.getpid(), signal.SIGHUP))
"""


@pytest.mark.parametrize(
    ("task", "code", "said"),
    [
        ("fails", 1, "the run failed."),
        ("terminated", 128 + signal.SIGTERM, "terminated by SIGTERM."),
        ("hung_up", 128 + signal.SIGHUP, "terminated by SIGHUP."),
    ],
)
def test_a_run_that_ends_early_says_how_to_go_on_without_its_secrets(
    task: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ending_early.py").write_text(ENDS_EARLY)
    name, folder = f"{tmp_path}/ending_early.py:{task}", tmp_path / "run"
    started = ["-p", "no:evaluation", "-o", "checkpoint.every=1", "-o"]
    with pytest.raises(SystemExit) as caught:
        main(
            ["train", name, "--run-dir", str(folder), "--epochs", "3", *started, "status.component=http://me:pw@host/"]
        )
    assert caught.value.code == code
    errors = capsys.readouterr().err
    command = f"hookline train {name} --run-dir {folder} --resume --epochs 3 {' '.join(started)}"
    assert f"{said} Resume it with: {command} 'status.component=http://********@host/'\n" in errors


def test_a_run_that_never_began_says_nothing_of_going_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(SystemExit):
        main(["train", "addition", "--run-dir", str(tmp_path)])
    errors = capsys.readouterr().err
    assert "holds a run already" in errors
    assert "Resume it with" not in errors


FAULTY = {
    "no-self": "class Plugin:\n    @hookimpl\n    def on_epoch_end(): ...\n",
    "base-exception": "class Odd(BaseException): ...\nraise Odd('at import')\n",
    "not-made": "class Plugin:\n    def __init__(self): raise SystemExit(0)\n",
    "leaves": "class Plugin:\n    @hookimpl\n    def register_tasks(self): raise SystemExit(0)\n",
    "leaves-late": "class Plugin:\n    @hookimpl\n    def post_training_step(self): raise SystemExit(0)\n",
}


def test_a_run_goes_on_without_the_plugins_that_are_faulty(
    site: Site, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name, source in FAULTY.items():
        site.install(name, source, distribution=f"faulty-{name}", version="2.1")
    with pytest.raises(SystemExit) as ended:
        main(["train", "addition", "--epochs", "1", "--run-dir", "run"])
    assert not ended.value.code
    assert "1 epochs, 8 gradient steps" in capsys.readouterr().out
    for name in FAULTY:
        assert f"plugin {name!r} (faulty-{name} 2.1) " in caplog.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--source", "aheda"], "rollout.source: there is no source 'aheda' (did you mean 'ahead'?)"),
        (["--source", "ahead", "--workers", "2"], "the source 'ahead' has one thread in each rank: use rollout.source"),
        (["--workers", "2"], "rollout.workers is 2, but the source 'local' makes rollouts in the trainer's thread"),
        (["--source", "processes", "--workers", "0"], "rollout.workers: must be at least 1, got 0"),
    ],
)
def test_a_source_that_cannot_be_is_refused_by_the_command(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "cartpole", "--run-dir", str(tmp_path / "run"), *arguments])
    assert caught.value.code == 1
    assert said in " ".join(capsys.readouterr().err.split())


def test_source_and_workers_are_short_for_fields_of_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", "cartpole", "--source", "processes", "--workers", "3", "--show-config"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert 'source = "processes"' in shown
    assert "workers = 3" in shown
