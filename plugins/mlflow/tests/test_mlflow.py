"""With the real MLflow: what was written to a database is read back by `MlflowClient`. All on this machine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.testing import check_plugin
from hookline_mlflow import MLflow

TRAIN = """
import logging, sys, threading, time
from pathlib import Path
from hookline.plugin_manager import PluginManager
from hookline_hookspecs import CheckpointRecord, Episode, HookContext, ReplayRecord, Rollout, TrainerState
from hookline_metrics import Metrics, Options
import hookline_mlflow

logging.basicConfig(level=logging.WARNING)
folder, steps, resume = Path(sys.argv[1]), range(*map(int, sys.argv[2].split("-"))), sys.argv[3] == "resume"
manager = PluginManager()
manager.register(Metrics(Options(progress="off", report=False, system_every=0), manager.emit), "metrics")
manager.register(hookline_mlflow.MLflow(hookline_mlflow.Options(experiment="tries")), "mlflow")
config = {"optimizer": {"lr": 0.5 if not resume else 0.25, "api_key": "planted"}, "layers": [2, 3]}
state = TrainerState(run_id="my run", run_dir=folder, config=config, step=steps[0], resume=resume)
manager.emit.on_new_training_run(state=state)
manager.emit.pre_training(state=state, report_data={})
for state.step in steps[1:]:
    time.sleep(0.03)  # at most 50 reports a second are kept apart
    report = {"train/loss": 1 / state.step, "train/a|b": 1.0, "train/broken": float("nan")}
    manager.emit.log_metrics(report_data=report, step=state.step)
rollout = Rollout(episodes=[Episode("2 + 3 =", "five", reward=0.0)])
manager.emit.on_rollout_end(context=HookContext(lesson_id="sums"), rollout=rollout)
manager.emit.on_epoch_end(state=state)
replay = folder / "replays" / f"epoch-{state.step:06d}.jsonl"
checkpoints = [folder / "checkpoints" / f"epoch-{epoch:06d}" for epoch in (state.step - 1, state.step)]
for path in (replay, replay.with_suffix(".html"), *(path / "state.json" for path in checkpoints)):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.name)
manager.emit.on_replay_saved(state=state, replay=ReplayRecord(replay, episodes=1, step=state.step))
for path in checkpoints:
    manager.emit.on_checkpoint_saved(state=state, checkpoint=CheckpointRecord(path, step=state.step))
if resume:
    manager.emit.on_training_failed(state=state, error=RuntimeError())
else:
    manager.emit.on_training_complete(state=state)
manager.close()
for thread in threading.enumerate():
    if thread.name.startswith("hookline-metrics-"):
        thread.join()
"""

READ = """
import json
from mlflow import MlflowClient, artifacts

client = MlflowClient()
experiment = client.get_experiment_by_name("tries")
(run,) = client.search_runs([experiment.experiment_id])

def files(path=None):
    for own in client.list_artifacts(run.info.run_id, path):
        yield from files(own.path) if own.is_dir else [own.path]

def history(name):
    return [[metric.step, metric.value] for metric in client.get_metric_history(run.info.run_id, name)]

print(json.dumps({
    "name": run.info.run_name, "status": run.info.status, "params": run.data.params,
    "loss": history("train/loss"), "other": history("train/a_b"), "broken": len(history("train/broken")),
    "files": sorted(files()),
    "sample": artifacts.load_text(f"{run.info.artifact_uri}/samples/step-000006.md"),
    "config": artifacts.load_dict(f"{run.info.artifact_uri}/config.json"),
}))
"""

CHECK = """
from hookline.testing import check_sink
from hookline_mlflow import MLflow

check_sink(MLflow, checkpoints="all")
print("checked")
"""


def python(folder: Path, code: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, in a folder of its own, where MLflow keeps its database."""
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder / "run"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", **environ},
    )
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run, and what was printed. In one process with the check, since MLflow takes seconds to start."""
    folder = tmp_path_factory.mktemp("mlflow")
    return folder, python(folder, TRAIN + CHECK, "0-7", "new").stdout


def test_it_is_a_good_plugin() -> None:
    check_plugin(MLflow)


def test_it_has_a_good_sink(first_run: tuple[Path, str]) -> None:
    assert "checked" in first_run[1]


def test_a_run_is_in_mlflow_and_continues_there_when_it_is_resumed(first_run: tuple[Path, str]) -> None:
    printed = python(first_run[0], READ + TRAIN + READ, "6-9", "resume").stdout
    first, resumed = map(json.loads, printed.splitlines())
    assert (first["name"], first["status"]) == ("my run", "FINISHED")
    assert first["params"] == {"optimizer.lr": "0.5", "optimizer.api_key": "********", "layers": "[2, 3]"}
    assert first["config"]["optimizer"] == {"lr": 0.5, "api_key": "********"}
    assert first["loss"] == [[step, 1 / step] for step in range(1, 7)]
    assert first["other"] == [[step, 1.0] for step in range(1, 7)]
    assert first["broken"] == 6
    assert first["files"] == [
        "checkpoints/epoch-000006/state.json",
        "config.json",
        "replays/epoch-000006.html",
        "replays/epoch-000006.jsonl",
        "samples/step-000006.md",
    ]
    assert first["sample"] == "**user**\n\n```\n2 + 3 =\n```\n\n**assistant**\n\n```\nfive\n```\n\nreward 0"
    assert resumed["status"] == "FAILED"
    assert resumed["loss"] == [[step, 1 / step] for step in range(1, 9)]
    assert resumed["config"]["optimizer"]["lr"] == 0.25
    assert "checkpoints/epoch-000008/state.json" in resumed["files"]


def test_a_server_that_is_down_is_a_warning_and_the_run_goes_on(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    result = python(tmp_path, TRAIN, "0-7", "new", MLFLOW_TRACKING_URI=address, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert "metrics could not be written to mlflow, trying again: MlflowException" in result.stderr
    assert "reports not written to mlflow" in result.stderr
