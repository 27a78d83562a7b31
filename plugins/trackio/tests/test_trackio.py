"""With the real trackio: what was written is read back through its own storage. All on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.testing import check_plugin
from hookline_trackio import Trackio

TRAIN = """
import logging, sys, threading, time
from pathlib import Path
from hookline.plugin_manager import PluginManager
from hookline_hookspecs import CheckpointRecord, Episode, HookContext, ReplayRecord, Rollout, TrainerState
from hookline_metrics import Metrics, Options
import hookline_trackio

logging.basicConfig(level=logging.WARNING)
folder, steps, resume = Path(sys.argv[1]), range(*map(int, sys.argv[2].split("-"))), sys.argv[3] == "resume"
manager = PluginManager()
manager.register(Metrics(Options(progress="off", report=False, system_every=0), manager.emit), "metrics")
manager.register(hookline_trackio.Trackio(hookline_trackio.Options(project="tries")), "trackio")
config = {"optimizer": {"lr": 0.5, "api_key": "planted"}, "_private": 3}
state = TrainerState(run_id="my run", run_dir=folder, config=config, step=steps[0], resume=resume)
manager.emit.on_new_training_run(state=state)
manager.emit.pre_training(state=state, report_data={})
for state.step in steps[1:]:
    time.sleep(0.03)  # at most 50 reports a second are kept apart
    manager.emit.log_metrics(report_data={"train/loss": 1 / state.step}, step=state.step)
rollout = Rollout(episodes=[Episode("2 + 3 =", "five", reward=0.0)])
manager.emit.on_rollout_end(context=HookContext(lesson_id="sums"), rollout=rollout)
manager.emit.on_epoch_end(state=state)
replay = folder / "replays" / f"epoch-{state.step:06d}.jsonl"
checkpoints = [folder / "checkpoints" / f"epoch-{epoch:06d}" for epoch in (state.step - 1, state.step)]
for path in (replay, replay.with_suffix(".html"), *(path / "state.json" for path in checkpoints)):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.name + str(state.step))
manager.emit.on_replay_saved(state=state, replay=ReplayRecord(replay, episodes=1, step=state.step))
for path in checkpoints:
    manager.emit.on_checkpoint_saved(state=state, checkpoint=CheckpointRecord(path, step=state.step))
manager.emit.on_training_complete(state=state)
manager.drain(60)
manager.close()
for thread in threading.enumerate():
    if thread.name.startswith("hookline-metrics-"):
        thread.join()
assert not manager.faults, manager.faults
"""

READ = """
import json, trackio
from trackio.sqlite_storage import SQLiteStorage

(run,) = trackio.Api().runs("tries")
logs = SQLiteStorage.get_logs("tries", run.name, run_id=run.id)
artifacts = {}
for own in SQLiteStorage.list_artifacts("tries"):
    for version in reversed(own["versions"]):
        files = SQLiteStorage.get_artifact_manifest("tries", own["name"], f"v{version['version']}")["manifest"]
        entry = [own["type"], version["aliases"], sorted(file["path"] for file in files)]
        artifacts.setdefault(own["name"], []).append(entry)
print(json.dumps({
    "name": run.name, "config": run.config, "artifacts": artifacts,
    "loss": [[log["step"], log["train/loss"]] for log in logs if "train/loss" in log],
    "traces": SQLiteStorage.get_traces("tries", run.name, run_id=run.id),
}))
"""

CHECK = """
from hookline.testing import check_sink
from hookline_trackio import Trackio

check_sink(Trackio, checkpoints="all")
print("checked")
"""


def python(folder: Path, code: str, *arguments: str) -> str:
    """Run code in a process of its own, since trackio reads its folder from the environment when it is imported."""
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder / "run"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run, and what was printed. In one process with the check, since trackio takes a second to start."""
    folder = tmp_path_factory.mktemp("trackio")
    return folder, python(folder, TRAIN + CHECK, "0-7", "new")


def test_it_is_a_good_plugin() -> None:
    check_plugin(Trackio)


def test_it_has_a_good_sink(first_run: tuple[Path, str]) -> None:
    assert "checked" in first_run[1]


def test_a_run_is_in_trackio_and_continues_there_when_it_is_resumed(first_run: tuple[Path, str]) -> None:
    printed = python(first_run[0], READ + TRAIN + READ, "6-9", "resume")
    first, resumed = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert first["name"] == "my run"
    config = {name: value for name, value in first["config"].items() if not name.startswith("_")}
    assert config == {"optimizer.lr": 0.5, "optimizer.api_key": "********", "private": 3}
    assert first["loss"] == [[step, 1 / step] for step in range(1, 7)]
    (trace,) = first["traces"]
    assert trace["messages"] == [{"role": "user", "content": "2 + 3 ="}, {"role": "assistant", "content": "five"}]
    assert trace["metadata"]["reward"] == 0.0
    assert first["artifacts"] == {
        "my-run-checkpoint": [["checkpoint", ["latest", "epoch-000006"], ["state.json"]]],
        "my-run-replays": [["replay", ["latest", "epoch-000006"], ["epoch-000006.html", "epoch-000006.jsonl"]]],
    }
    assert resumed["loss"] == [[step, 1 / step] for step in range(1, 9)]
    assert len(resumed["artifacts"]["my-run-checkpoint"]) == 2
