"""A training that does not come to its end is a failed run for the plugins, and commands read what it left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_trainers
from tiny_trainers import EndAfterStep, make_trainer

from hookline import hookimpl
from hookline.cli import main
from hookline_transformers import HooklineCallback, hookline_run


class Witness:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.is_complete = False

    @hookimpl
    def on_training_failed(self, error: BaseException) -> None:
        self.errors.append(error)

    @hookimpl
    def on_training_complete(self) -> None:
        self.is_complete = True


def last_status(folder: Path) -> str:
    status: str = json.loads((folder / "run" / "status.json").read_text())[-1]["status"]
    return status


def test_a_run_within_hookline_run_fails_with_the_exception_that_ended_it(folder: Path) -> None:
    witness = Witness()
    plugins = {"witness": witness, "ender": EndAfterStep("raise", 3)}
    trainer = make_trainer("trainer", folder, HooklineCallback(folder / "run", plugins=plugins))
    with pytest.raises(ZeroDivisionError) as raised, hookline_run(trainer):
        trainer.train()
    assert witness.errors == [raised.value]
    assert not witness.is_complete
    assert last_status(folder) == "FAILURE"


def test_sigterm_ends_a_run_as_failed(folder: Path) -> None:
    witness = Witness()
    plugins = {"witness": witness, "ender": EndAfterStep("terminate", 3)}
    trainer = make_trainer("trainer", folder, HooklineCallback(folder / "run", plugins=plugins))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, hookline_run(trainer):
        trainer.train()
    assert raised.value.code == 128 + signal.SIGTERM
    assert [str(error) for error in witness.errors] == ["terminated by SIGTERM"]
    assert last_status(folder) == "FAILURE"
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_hookline_run_a_run_fails_when_the_process_ends(folder: Path) -> None:
    command = [sys.executable, tiny_trainers.__file__, "trainer", str(folder), "--end", "raise"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "ZeroDivisionError: on purpose" in result.stderr
    entry = json.loads((folder / "run" / "status.json").read_text())[-1]
    assert entry["status"] == "FAILURE"
    assert "on purpose" in entry["message"]


def test_without_hookline_run_a_run_fails_when_the_trainer_trains_again(folder: Path) -> None:
    witness = Witness()
    plugins = {"witness": witness, "ender": EndAfterStep("raise", 3)}
    callback = HooklineCallback(folder / "run", plugins=plugins)
    trainer = make_trainer("trainer", folder, callback)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    with pytest.raises(ZeroDivisionError):
        trainer.train(resume_from_checkpoint=True)
    assert "neither by its end nor within hookline_run" in str(witness.errors[0])
    callback.fail(RuntimeError("the test is over"))


def command(*words: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    shown = capsys.readouterr()
    assert ended.value.code == status, shown
    return shown.out + shown.err


def test_commands_read_the_runs_folder_or_say_what_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer("trainer", folder, HooklineCallback(folder / "run"))
    with hookline_run(trainer):
        trainer.train()
    capsys.readouterr()
    assert "train/loss" in command("runs", "run", capsys=capsys)
    command("report", "run", capsys=capsys)
    assert (folder / "run" / "report.html").exists()
    assert "was trained by transformers" in command("evaluate", "run", capsys=capsys, status=1)
