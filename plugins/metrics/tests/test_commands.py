import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hookline.cli import main
from hookline_hookspecs.sinks import Report, Run
from hookline_metrics.durations import format_age, format_duration
from hookline_metrics.sinks.sqlite import SQLiteSink
from hookline_metrics.terminal import sparkline

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
    sink.write([Report(40, 3, {end: 1.0, "eval/sums/success_rate": 0.75}, started + 41)])
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
    assert "No runs in runs/. Start one: `hookline train" in hookline("runs")


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
    assert (
        "there is no run 'cartpole-2': no such folder, and none of that name in runs/ (did you mean 'cartpole-1'?)"
        in fails(command, "cartpole-2").replace("\n", " ")
    )


def test_a_folder_that_is_no_run_has_no_report(fails: Hookline, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty is not the folder of a run: it has no stats.sqlite" in fails("report", "empty")


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
    assert [format_duration(seconds) for seconds in (0, 12, 185, 7800, 3600, 273600)] == [
        "0 s",
        "12 s",
        "3 min 5 s",
        "2 h 10 min",
        "1 h",
        "3 d 4 h",
    ]
    assert format_age(7800) == "2 h"


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def damaged_inside(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


def locked(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    _kept_open.append(connection)


def of_another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs(title)")


def with_rows_of_another_type(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE numbers SET value = 'high'")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path.parent / "config.json").write_text("{}")


_kept_open: list[sqlite3.Connection] = []


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (garbage, "file is not a database"),
        (truncated, "malformed"),
        (damaged_inside, "malformed"),
        (locked, "database is locked"),
        (of_another_program, "no such table: metrics"),
        (with_rows_of_another_type, "rows that are not metrics"),
        (a_folder, "unable to open database file"),
    ],
)
def test_a_damaged_run_is_one_row_that_says_so_and_the_others_are_listed(
    hookline: Hookline, fails: Hookline, tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    for name in ("damaged", "intact"):
        make_run(tmp_path / "runs" / name)
    damage(tmp_path / "runs" / "damaged" / "stats.sqlite")
    try:
        heading, first, second, *said = hookline("runs").splitlines()
        assert "success" in heading
        assert first.split()[:2] == ["intact", "finished"]
        assert second.split() == ["damaged", "unreadable"]
        assert len(said) == 1
        assert said[0].startswith("damaged: ")
        assert why in said[0]
        by_name = {run["run"]: run for run in json.loads(hookline("runs", "--json"))}
        assert by_name["damaged"]["state"] == "unreadable"
        assert why in by_name["damaged"]["message"]
        assert by_name["intact"]["step"] == 40
    finally:
        while _kept_open:
            _kept_open.pop().close()


def test_a_run_that_was_killed_before_its_first_number_is_a_run_without_numbers(
    hookline: Hookline, tmp_path: Path
) -> None:
    make_run(tmp_path / "runs" / "intact")
    killed = tmp_path / "runs" / "killed"
    killed.mkdir()
    (killed / "stats.sqlite").touch()
    _, first, second = hookline("runs").splitlines()
    assert first.split()[:2] == ["intact", "finished"]
    assert second.split() == ["killed", "stopped", "0"]
    assert "No metrics have been recorded yet." in hookline("runs", "killed")


def test_a_damaged_run_alone_is_an_error_and_no_traceback(fails: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "damaged")
    garbage(tmp_path / "runs" / "damaged" / "stats.sqlite")
    for command in ("runs", "report"):
        said = fails(command, "damaged")
        assert "stats.sqlite cannot be read: file is not a database" in said.replace("\n", " ")
        assert "Traceback" not in said


def test_a_report_that_cannot_be_written_says_where_and_what_to_do(fails: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "mine" / "report.html").mkdir()  # no user may write there, root neither
    said = " ".join(fails("report", "mine").split())
    assert "the report cannot be written to runs/mine/report.html: Is a directory" in said
    assert "Use --output to write it elsewhere" in said
    assert not list((tmp_path / "runs" / "mine").glob(".report*"))


def test_the_report_of_a_killed_process_leaves_nothing_beside_the_next(hookline: Hookline, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "mine")
    leftover = tmp_path / "runs" / "mine" / ".report.html.4194305-1.new"  # there are no processes above 2**22
    leftover.touch()
    hookline("report", "mine")
    assert not leftover.exists()


@pytest.mark.parametrize("name", ["file:x?mode=ro", "file:///x", "a?b#c%20d"])
def test_a_folder_may_be_named_as_an_address_of_sqlite(hookline: Hookline, tmp_path: Path, name: str) -> None:
    folder = Path(name)
    hookline("runs")  # moves to the folder of the test
    make_run(folder)
    assert (tmp_path / name / "stats.sqlite").is_file()
    listed = json.loads(hookline("runs", name, "--json"))
    assert listed["step"] == 40


def config_of(**changes: object) -> dict[str, object]:
    """What a session records, with these parts changed."""
    checkpoint = {"distribution": "hookline-checkpoint", "version": "0.1.0", "hash": "sha256:" + "a" * 64}
    guard = {
        "load": {"module": "guards.py", "name": "Guard", "folder": "/p"},
        "hash": "sha256:" + "b" * 64,
        "options": {},
    }
    return {
        "task": "cartpole",
        "trainer": {"seed": 1, "optimizer": {"learning_rate": 0.1}, "api_key": "********"},
        "plugins": {"checkpoint": {**checkpoint, "options": {"every": 5}}, "guard": guard},
        "disabled": ["status"],
        "packages": {"python": {"version": "3.11.7"}, "torch": {"version": "2.13.0", "hash": "sha256:" + "c" * 64}},
        **changes,
    }


def write_configs(tmp_path: Path, *configs: object) -> None:
    for name, config in zip(("a", "b"), configs, strict=True):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text(json.dumps(config))


def test_two_runs_are_compared_by_config_plugins_and_versions(hookline: Hookline, tmp_path: Path) -> None:
    other = config_of(trainer={"seed": 2, "optimizer": {"learning_rate": 0.1}, "api_key": "********"})
    other["plugins"] = {
        "checkpoint": {**other["plugins"]["checkpoint"], "version": "0.2.0", "options": {"every": 9}},
        "status": {"distribution": "hookline-status", "version": "0.1.0", "hash": "sha256:d", "options": {"every": 1}},
    }
    other["packages"] = {"python": {"version": "3.12.1"}, "torch": {"version": "2.13.0", "hash": "sha256:" + "e" * 64}}
    write_configs(tmp_path, config_of(), other)
    assert hookline("runs", "--diff", "a", "b").splitlines() == [
        "                     a                      b",
        "config",
        "  trainer.seed       1                      2",
        "plugins",
        "  checkpoint.every   5                      9",
        "  guard              guards.py:Guard        -",
        "  status             -                      hookline-status",
        "versions",
        "  python             3.11.7                 3.12.1",
        "  torch              2.13.0 (cccccccccccc)  2.13.0 (eeeeeeeeeeee)",
        "  plugin checkpoint  0.1.0 (aaaaaaaaaaaa)   0.2.0 (aaaaaaaaaaaa)",
    ]
    found = json.loads(hookline("runs", "--json", "--diff", "a", "runs/b"))
    assert found["config"] == {"trainer.seed": ["1", "2"]}


def test_two_runs_that_are_alike_say_so(hookline: Hookline, tmp_path: Path) -> None:
    write_configs(tmp_path, config_of(), config_of())
    assert hookline("runs", "--diff", "a", "b") == "a and b have the same config, plugins and versions\n"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (None, "b has no config.json, so it cannot be compared"),
        ("{", "cannot be read"),
        ("3", "is not the config of a run"),
    ],
)
def test_a_run_that_cannot_be_compared_says_why(
    fails: Hookline, tmp_path: Path, config: str | None, problem: str
) -> None:
    write_configs(tmp_path, config_of(), config_of())
    file = tmp_path / "runs" / "b" / "config.json"
    file.unlink() if config is None else file.write_text(config)
    assert problem in " ".join(fails("runs", "--diff", "a", "b").split())
