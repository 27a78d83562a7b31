"""`hookline train`, as people use it: it runs, is stopped and taken up again, and helps where a command was mistyped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("hookline_checkpoint")

from hookline.cli import main

HOOKLINE = str(Path(sys.executable).with_name("hookline"))


def train(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HOOKLINE, "train", *arguments], capture_output=True, text=True, cwd=cwd, timeout=500, check=False
    )


def test_a_task_leaves_a_run_folder_with_all_that_plugins_make(tmp_path: Path) -> None:
    result = train("cartpole", "--epochs", "2", "--seed", "3", "--profile-plugins", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("cartpole-")
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "stats.sqlite", "checkpoints", "status.json", "heartbeat", "plugins.trace.json"}
    config = json.loads((folder / "config.json").read_text())
    assert (config["task"], config["trainer"]["epochs"], config["trainer"]["seed"]) == ("cartpole", 2, 3)
    assert str(folder.relative_to(tmp_path)) in result.stdout
    assert "Time spent in plugins" in result.stderr


def test_runs_of_a_task_that_begin_in_one_second_have_a_folder_each(tmp_path: Path) -> None:
    same_second = (
        "import sys, time\n"
        "time.strftime = lambda *_: '20260101-000000'\n"
        "from hookline.cli import main\n"
        "main(['train', 'cartpole', '--epochs', '1', '-p', 'no:checkpoint', '-p', 'no:evaluation'])\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", same_second], cwd=tmp_path) for _ in range(2)]
    assert [run.wait(timeout=500) for run in runs] == [0, 0]
    folders = sorted((tmp_path / "runs").iterdir())
    assert [folder.name for folder in folders] == ["cartpole-20260101-000000", "cartpole-20260101-000000-2"]
    assert all((folder / "config.json").exists() for folder in folders)


def test_a_run_that_does_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    assert train("cartpol", cwd=tmp_path).returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_stopped_by_ctrl_c_and_taken_up_as_it_says(tmp_path: Path) -> None:
    started = ["--seed", "3", "-p", "no:status", "-o", "checkpoint.every=1", "-o", "metrics.csv=true"]
    run = subprocess.Popen(
        [HOOKLINE, "train", "cartpole", "--run-dir", "run", *started],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    while not list(tmp_path.glob("run/checkpoints/epoch-*/manifest.json")):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=500)
    assert run.returncode == 130, errors
    assert f"Resume it with: hookline train cartpole --run-dir run --resume {' '.join(started)}\n" in errors
    assert "Traceback" not in errors
    before = json.loads((tmp_path / "run" / "config.json").read_text())
    # Neither the task nor an option is said again, and the settings have changed meanwhile.
    (tmp_path / "hookline.toml").write_text("[plugins.checkpoint]\nevery = 7\n")
    result = train("--run-dir", "run", "--resume", "--epochs", "30", "-o", "metrics.csv=false", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "resumed from" in result.stderr
    for said in (
        "resuming with the config recorded in run/config.json",
        f"changed: epochs {before['trainer']['epochs']} -> 30",
        "changed: metrics.csv true -> false",
        "hookline.toml: plugins.checkpoint.every is ignored: the resumed run keeps its recorded every = 1; change it by",
    ):
        assert said in result.stderr
    after = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (after["trainer"]["seed"], after["trainer"]["epochs"]) == (3, 30)
    assert (after["plugins"]["checkpoint"]["options"]["every"], "status" in after["plugins"]) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "help_text"),
    [
        (["cartpol"], "there is no task 'cartpol' (did you mean 'cartpole'?)"),
        (["cartpole", "--resume"], "--resume needs --run-dir"),
        ([], "no task given: hookline train TASK"),
        (["cartpole", "--seed", "-1"], "seed must be from 0 to 4294967295, got -1"),
        (["cartpole", "--run-dir", "x" * 300], "cannot be created: File name too long"),
        (
            ["cartpole", "-o", "status.token=********"],
            "******** is a redacted secret: give the secret",
        ),
        (["cartpole", "--resume", "--run-dir", "none"], "nothing to resume in none: there is no such folder"),
        (["cartpole", "-p", "no:chekpoint"], "no installed plugin is called 'chekpoint' (did you mean 'checkpoint'?)"),
        (["cartpole", "-o", "checkpoint.keep=1"], "unknown key 'keep' (did you mean 'keep_last'?)"),
        (["cartpole", "--epochs", "0"], "epochs must be at least 1, got 0"),
        (["cartpole", "--run-dir", "file/run"], "the run's folder"),
    ],
)
def test_a_mistake_is_answered_by_help_and_not_by_a_traceback(
    arguments: list[str],
    help_text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments])
    assert ended.value.code == 1
    errors = capsys.readouterr().err
    assert help_text in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "runs").exists()


def test_a_missing_framework_says_which_extra_brings_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [HOOKLINE, "train", "cartpole"], capture_output=True, text=True, env=environ, cwd=tmp_path, check=False
    )
    assert result.returncode == 1
    assert 'needs torch, which is not installed: pip install "hookline[torch]"' in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_while_torch_is_imported_is_answered_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    run = subprocess.Popen(
        [HOOKLINE, "train", "cartpole"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "importing\n"
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=500)
    assert (run.returncode, errors) == (130, "stopped before the run began.\n")


def test_two_runs_of_one_config_do_not_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hookline_metrics")
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        with pytest.raises(SystemExit) as ended:
            main(["train", "cartpole", "--epochs", "1", "--run-dir", f"runs/{name}", "-p", "no:evaluation"])
        assert not ended.value.code
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["runs", "--diff", "one", "two"])
    assert capsys.readouterr().out == "one and two have the same config, plugins and versions\n"


def test_a_run_without_its_plugins_goes_on_without_their_files(tmp_path: Path) -> None:
    off = [part for name in ("checkpoint", "metrics", "evaluation", "status") for part in ("-p", f"no:{name}")]
    result = train("addition", "--epochs", "1", "--run-dir", "run", *off, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "config.json"}
