import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from hookline.cli import main
from hookline_metrics.sinks import Report, Run
from hookline_metrics.sinks.sqlite import SQLiteSink
from hookline_metrics.terminal import sparkline
from hookline_metrics.wording import age_in_words, duration_in_words

Hookline = Callable[..., str]


@pytest.fixture
def hookline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hookline:
    """Runs a command in a folder of its own, and returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out

    return run


@pytest.fixture
def fails(hookline: Hookline, capsys: pytest.CaptureFixture[str]) -> Hookline:
    """Runs a command that must fail, and returns what it said."""

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 1
        return capsys.readouterr().err

    return run


def make_run(folder: Path, *, started: float = 1000.0, end: str = "run/completed") -> None:
    sink = SQLiteSink(Run(folder))
    sink.write([Report(0, None, {"run/started": 1.0}, started)])
    sink.write([Report(s, s // 10, {"train/loss": 1 / s, "rollout/mean_reward": s}, started + s) for s in range(1, 41)])
    sink.write([Report(40, 3, {end: 1.0, "inference.eval/sums/success_rate": 0.75}, started + 41)])
    sink.close()
    (folder / "heartbeat").touch()


def test_runs_are_listed_with_their_last_numbers_the_newest_first(hookline: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "older", started=1000.0)
    make_run(tmp_path / "runs" / "newer", started=5000.0, end="run/failed")
    heading, first, second = hookline("runs").splitlines()
    assert heading.split() == ["run", "state", "age", "epoch", "step", "loss", "reward", "success"]
    assert first.split()[:2] == ["newer", "failed"]
    assert second.split()[0] == "older"
    assert second.split()[-5:] == ["4", "40", "0.025", "40", "75%"]


def test_a_folder_of_runs_may_be_anywhere(hookline: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere" / "one")
    assert "one" in hookline("runs", "elsewhere")


def test_without_runs_it_says_how_to_make_one(hookline: Hookline) -> None:
    assert "There is no run in runs/. `hookline train" in hookline("runs")


def test_one_run_is_shown_with_a_small_chart_of_each_metric(hookline: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "mine" / "status.json").write_text("[]")
    shown = hookline("runs", "mine")
    assert "mine finished  epoch 4, step 40, took 41 s" in shown
    [loss] = [line for line in shown.splitlines() if line.startswith("train/loss")]
    assert "█" in loss
    assert loss.split()[-3:] == ["0.025", "0.025", "1"]
    assert "run/started" not in shown


def test_both_are_json_for_another_program(hookline: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    [listed] = json.loads(hookline("runs", "--json"))
    assert listed["run"] == "mine"
    assert listed["state"] == "finished"
    assert (listed["epoch"], listed["step"]) == (3, 40)
    assert listed["numbers"] == {"loss": 0.025, "reward": 40.0, "success": 0.75}
    shown = json.loads(hookline("runs", "runs/mine", "--json"))
    assert shown["metrics"]["train/loss"]["steps"] == list(range(1, 41))
    assert {
        name: value for name, value in shown.items() if name not in ("metrics", "heartbeat_age_seconds", "folder")
    } == {name: value for name, value in listed.items() if name not in ("heartbeat_age_seconds", "folder")}


@pytest.mark.parametrize("command", ["runs", "report"])
def test_a_wrong_name_is_met_with_the_nearest(fails: Hookline, tmp_path: Path, command: str) -> None:
    make_run(tmp_path / "runs" / "cartpole-1")
    assert "there is no run 'cartpole-2', neither as a folder nor in runs/ (did you mean 'cartpole-1'?)" in fails(
        command, "cartpole-2"
    ).replace("\n", " ")


def test_a_folder_that_is_no_run_has_no_report(fails: Hookline, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty is not the folder of a run: there is no stats.sqlite" in fails("report", "empty")


def test_the_report_goes_to_the_run_or_where_it_is_wanted(hookline: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    assert hookline("report", "mine").strip() == "runs/mine/report.html"
    assert "<!doctype html>" in (tmp_path / "runs" / "mine" / "report.html").read_text()
    hookline("report", "mine", "--output", "out/mine.html")
    assert (tmp_path / "out" / "mine.html").exists()


def test_the_report_is_opened_on_request(hookline: Hookline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "runs" / "mine")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    hookline("report", "mine", "--open")
    assert opened == [(tmp_path / "runs" / "mine" / "report.html").as_uri()]


def test_a_sparkline_is_as_wide_as_it_may_be_and_has_gaps() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0] * 10 + [1.0] * 10, 4) == "▁▁██"
    assert sparkline([0.0, math.nan, 1.0], 3) == "▁·█"
    assert sparkline([math.nan, math.inf], 2) == "··"
    assert sparkline([5.0, 5.0], 2) == "▄▄"
    assert sparkline([], 8) == ""


def test_durations_are_in_words() -> None:
    assert [duration_in_words(seconds) for seconds in (0, 12, 185, 7800, 3600, 273600)] == [
        "0 s",
        "12 s",
        "3 min 5 s",
        "2 h 10 min",
        "1 h",
        "3 d 4 h",
    ]
    assert age_in_words(7800) == "2 h"
