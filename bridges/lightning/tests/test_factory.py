"""The callback that an installed hookline-lightning brings to every trainer, and the folders it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from hookline.cli.app import main
from hookline_lightning import HooklineCallback


def runs_in(folder: Path) -> list[str]:
    return sorted(own.parent.name for own in folder.glob("runs/*/config.json"))


def test_a_fit_is_a_run_with_no_line_of_the_users_changed(tiny: ModuleType, tmp_path: Path) -> None:
    for _ in range(2):
        tiny.trainer(tmp_path, max_epochs=1).fit(tiny.Automatic(), **tiny.loaders())
    assert runs_in(tmp_path) == ["lightning-0", "lightning-1"]
    config = json.loads((tmp_path / "runs" / "lightning-0" / "config.json").read_text())
    assert config["host"] == "lightning"
    assert config["hparams"]["width"] == 8
    assert "not to be written" not in (tmp_path / "runs" / "lightning-0" / "config.json").read_text()


@pytest.mark.parametrize("where", ["environment", "pyproject.toml"])
def test_it_can_be_turned_off(tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "environment":
        monkeypatch.setenv("HOOKLINE_DISABLE_LIGHTNING", "1")
    else:
        (tmp_path / "pyproject.toml").write_text('[tool.hookline]\ndisable = ["lightning"]\n')
    tiny.trainer(tmp_path, max_epochs=1).fit(tiny.Automatic(), **tiny.loaders())
    assert runs_in(tmp_path) == []
    # What is turned off is the entry point: a callback that is given by hand works, and no setting is at fault.
    tiny.trainer(tmp_path, HooklineCallback(), max_epochs=1).fit(tiny.Automatic(), **tiny.loaders())
    assert runs_in(tmp_path) == ["lightning-0"]


def test_a_callback_that_is_given_by_hand_is_the_only_one(tiny: ModuleType, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, HooklineCallback(tmp_path / "runs" / "mine"), max_epochs=1)
    trainer.fit(tiny.Automatic(), **tiny.loaders())
    assert runs_in(tmp_path) == ["mine"]


def test_a_trial_of_one_batch_and_a_bare_trainer_leave_no_run(tiny: ModuleType, tmp_path: Path) -> None:
    for options in ({"fast_dev_run": True}, {"barebones": True, "max_epochs": 1}):
        tiny.trainer(tmp_path, **options).fit(tiny.Automatic(), **tiny.loaders())
    assert runs_in(tmp_path) == []


def test_the_commands_know_the_run(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    tiny.trainer(tmp_path).fit(tiny.Automatic(), **tiny.loaders())
    run_hookline("runs")
    assert "lightning-0" in capsys.readouterr().out
    run_hookline("report", "lightning-0")
    assert "val_rmse" in (tmp_path / "runs" / "lightning-0" / "report.html").read_text()
    capsys.readouterr()
    assert run_hookline("evaluate", "runs/lightning-0") != 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "lightning-0 was trained by lightning: its model is made by your own script" in shown


def run_hookline(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as exit_info:
        main(list(arguments))
    return int(exit_info.value.code or 0)
