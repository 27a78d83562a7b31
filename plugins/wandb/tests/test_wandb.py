"""With the real wandb, offline or without a server."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import check_plugin, check_sink
from hookline_hookspecs import TrainerState
from hookline_hookspecs.sinks import Report, Run
from hookline_metrics import Metrics
from hookline_metrics import Options as MetricsOptions
from hookline_wandb import Options, Wandb

KEY = "0123456789abcdef0123456789abcdef01234567"

TRAIN = """
import json, logging, sys, time
from pathlib import Path
from hookline.plugin_manager import PluginManager
from hookline_hookspecs import Episode, HookContext, ReplayRecord, Rollout, TrainerState
from hookline_metrics import Metrics, Options
import hookline_wandb

logging.basicConfig(level=logging.WARNING)
manager = PluginManager()
mode, folder = sys.argv[1], Path(sys.argv[2])
manager.register(Metrics(Options(progress="off", steps="all"), manager.emit), "metrics")
manager.register(hookline_wandb.Wandb(hookline_wandb.Options(mode=mode)), "wandb")
assert "wandb" not in sys.modules
state = TrainerState(
    run_id="my-run",
    run_dir=folder,
    config={"learning_rate": 0.5, "api_key": "planted-in-config", "url": "https://me:planted-in-url@host/x"},
)
manager.emit.on_new_training_run(state=state)
manager.emit.pre_training(state=state, report_data={})
for state.step in range(1, 51):
    manager.emit.log_metrics(report_data={"train/loss": 1 / state.step}, step=state.step)
while "wandb_run" not in state.shared["metrics"]:
    time.sleep(0.02)
rollout = Rollout(episodes=[Episode("2 + 3 =", "five", reward=0.0)])
manager.emit.on_rollout_end(context=HookContext(lesson_id="sums"), rollout=rollout)
manager.emit.on_epoch_end(state=state)
replay = folder / "replays" / "epoch-000001.jsonl"
replay.parent.mkdir()
for path in (replay, replay.with_suffix(".html")):
    path.write_text("{}")
manager.emit.on_replay_saved(state=state, replay=ReplayRecord(replay, episodes=1, step=50))
manager.emit.on_training_complete(state=state)
manager.drain(60)
live = state.shared["metrics"].get("wandb_run")
print(json.dumps(dict(live.config)))
manager.close()
"""


def train(mode: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-c", TRAIN, mode, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**clean, "HOME": str(folder.parent / "home"), **environ},
    )


def assert_kept_offline(result: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert result.returncode == 0, result.stderr
    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    # Records of names and values as text, of which the last report's are these.
    recorded = file.read_bytes()
    assert re.search(rb"train/loss\W*0\.02\W", recorded)
    assert b"replays-my-run" in recorded
    assert b"epoch-000001.jsonl" in recorded
    [table] = folder.glob("wandb/offline-run-*/files/media/table/samples/sums*.json")
    rows = json.loads(table.read_text())["data"]
    assert rows == [[50, "**user**\n\n```\n2 + 3 =\n```\n\n**assistant**\n\n```\nfive\n```\n\nreward 0", 0.0, ""]]


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_offline_it_has_the_numbers_the_config_and_no_secret(tmp_path: Path) -> None:
    result = train("offline", tmp_path / "run", WANDB_API_KEY=KEY, MY_PASSWORD="planted-in-environment")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "learning_rate": 0.5,
        "api_key": "********",
        "url": "https://********@host/x",
    }
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert_kept_offline(result, tmp_path / "run")
    for path in files:
        for secret in ("planted-in-config", "planted-in-url", "planted-in-environment", KEY):
            assert secret.encode() not in path.read_bytes(), f"{secret} in {path}"


def test_without_a_key_the_run_is_kept_offline(tmp_path: Path) -> None:
    result = train("online", tmp_path / "run", WANDB_BASE_URL=f"http://127.0.0.1:{closed_port()}")
    assert result.returncode == 0, result.stderr
    assert "wandb has no API key: the run is kept offline" in result.stderr
    assert_kept_offline(result, tmp_path / "run")


def test_without_a_server_the_run_is_kept_offline(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{closed_port()}"
    result = train("online", tmp_path / "run", WANDB_BASE_URL=address, WANDB_API_KEY=KEY)
    assert "wandb cannot be reached, the run is kept offline: 127.0.0.1: [Errno 111]" in result.stderr
    assert_kept_offline(result, tmp_path / "run")


def test_with_a_server_that_refuses_the_key_the_run_is_kept_offline(tmp_path: Path) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        result = train("online", tmp_path / "run", WANDB_BASE_URL=address, WANDB_API_KEY=KEY)
        server.shutdown()
    assert "wandb cannot be reached, the run is kept offline" in result.stderr
    assert_kept_offline(result, tmp_path / "run")


def test_without_the_package_training_goes_on(
    hookline_manager: PluginManager,
    hookline_state: Callable[..., TrainerState],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "hookline_wandb.sink", raising=False)
    options = MetricsOptions(progress="off", report=False, system_every=0.0)
    hookline_manager.register(Metrics(options, hookline_manager.emit), "metrics")
    hookline_manager.register(Wandb(Options()), "wandb")
    state = hookline_state()
    hookline_manager.emit.on_new_training_run(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    hookline_manager.drain()
    assert "metrics are not written to wandb: ModuleNotFoundError: import of wandb halted" in caplog.text
    assert "wandb_run" not in state.shared["metrics"]


def test_it_is_a_good_plugin_with_a_good_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "wandb-files"))
    check_plugin(Wandb)
    check_sink(Wandb, mode="offline")


class Calls:
    """A wandb run that keeps what it is given."""

    id = "r1"

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, float], int]] = []
        self.is_finished = False

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.calls.append((dict(numbers), step))

    def finish(self) -> None:
        self.is_finished = True


def test_many_reports_are_few_calls_and_no_name_is_left_out() -> None:
    from hookline_wandb.sink import WandbSink

    run = Calls()
    sink = WandbSink(run, "my-run")
    reports = [Report(step, 0, {"loss": float(step)}, step / 200) for step in range(100)]
    reports[13] = Report(13, 0, {"score": 0.5}, 13 / 200)
    sink.write(reports)
    assert [step for _, step in run.calls] == [24, 49, 74, 99]
    assert run.calls[0] == ({"loss": 24.0, "score": 0.5}, 24)
    sink.close()
    assert run.is_finished


def test_a_resumed_run_continues_the_wandb_run_that_is_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hookline_wandb import sink

    started: list[dict[str, Any]] = []

    def init(**given: Any) -> Any:
        started.append(given)
        return SimpleNamespace(id=given["id"] or f"new-{len(started)}")

    monkeypatch.setattr(sink.wandb, "init", init)
    for resume in (False, True, True, False):
        sink._start(Run(tmp_path, "my-run", resume=resume), Options(), "online")
    sink._start(Run(tmp_path, "my-run", resume=True), Options(), "offline")
    assert [(given["id"], given["resume"]) for given in started] == [
        (None, None),
        ("new-1", "allow"),
        ("new-1", "allow"),
        (None, None),
        (None, None),
    ]
    assert {given["group"] for given in started} == {"my-run"}
