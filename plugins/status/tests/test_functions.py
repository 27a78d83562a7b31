"""Status reports as functions: the messages of each hook, and their delivery when the process exits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline_status import TAOStatusLogger, create_status_logger, create_training_hooks, create_validation_hooks
from hookline_status.endpoint import EndpointError
from hookline_status.functions import close_deliveries

WORKER = object()


@pytest.fixture(autouse=True)
def closed_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    close_deliveries()


def train(hooks: dict[str, Callable[..., None]], steps: range, until: int | None = None) -> None:
    hooks["pre_training_hook"](WORKER, {"total_epochs": 1, "total_steps": 40, "start_epoch": 0, "start_step": steps[0]})
    for step in steps:
        hooks["pre_training_step_hook"](WORKER, {"current_epoch": 0, "current_step": step, "total_steps": 40})
        hooks["post_training_step_hook"](WORKER, {"current_epoch": 0, "current_step": step + 1, "train/loss": 0.5})
    if until is None:
        hooks["post_training_hook"](WORKER, {"final_epoch": 0, "final_step": 40, "final_val_loss": None})


def heartbeats(server: Any) -> list[int]:
    return [b["data"]["current_step"] for b in server.bodies() if b.get("phase") == "training_heartbeat"]


def test_a_heartbeat_comes_every_so_many_steps(server: Any) -> None:
    train(create_training_hooks(status_endpoint=server.url, heartbeat_interval=10), range(40))
    close_deliveries()
    assert heartbeats(server) == [10, 20, 30, 40]
    bodies = server.bodies()
    assert [(b["phase"], b["data"].get("status")) for b in (bodies[0], bodies[-1])] == [
        ("pre_training", "STARTED"),
        ("post_training", "SUCCESS"),
    ]
    assert {b["phase"] for b in bodies} >= {"pre_training_step", "post_training_step"}


def test_heartbeats_of_a_resumed_training_and_of_jumping_steps_come_when_a_multiple_is_crossed(server: Any) -> None:
    train(create_training_hooks(server.url, 10), range(17, 40, 4))
    close_deliveries()
    assert heartbeats(server) == [22, 30]


def test_a_heartbeat_every_no_steps_is_an_error() -> None:
    with pytest.raises(ValueError, match="heartbeat_interval must be at least 1 step, got 0"):
        create_training_hooks("http://localhost/status", heartbeat_interval=0)
    with pytest.raises(EndpointError, match="must be an http or https URL with a host"):
        create_status_logger("localhost/status")


def test_a_validation_is_told_with_a_heartbeat(server: Any) -> None:
    hooks = create_validation_hooks(status_endpoint=server.url)
    hooks["pre_validation_hook"](WORKER, {"current_epoch": 0, "is_last_step": True})
    for batch in range(3):
        hooks["pre_per_step_validation_hook"](WORKER, {"current_epoch": 0, "batch_index": batch})
        hooks["post_per_step_validation_hook"](WORKER, {"current_epoch": 0, "batch_index": batch, "val_score": 0.5})
    hooks["post_validation_hook"](WORKER, {"current_epoch": 0, "val_avg_loss": 0.5})
    close_deliveries()
    told = {body["phase"]: body["data"] for body in server.bodies()}
    assert told["validation_heartbeat"].pop("seconds_since_progress") >= 0
    assert told == {
        "pre_validation": {"current_epoch": 0, "is_last_step": True},
        "pre_validation_step": {"current_epoch": 0, "batch_index": 0},
        "post_validation_step": {"current_epoch": 0, "batch_index": 0, "val_score": 0.5},
        "post_validation": {"current_epoch": 0, "val_avg_loss": 0.5},
        "validation_heartbeat": {"current_epoch": 0, "val_avg_loss": 0.5},
    }


def test_the_logger_sends_each_report_under_its_name(server: Any) -> None:
    logger = create_status_logger(endpoint=server.url, component_name="My SFT Training")
    logger({"train/loss": 0.5}, 1)
    logger({"val_avg_loss": 0.25}, 1)
    close_deliveries()
    assert [(b["component"], b["step"], b["metrics"]) for b in server.bodies()] == [
        ("My SFT Training", 1, {"train/loss": 0.5}),
        ("My SFT Training", 1, {"val_avg_loss": 0.25}),
    ]


def test_tao_speaks_in_the_name_of_the_experiment_and_has_all_hooks(server: Any) -> None:
    tao = TAOStatusLogger(status_endpoint=server.url, experiment_name="sft-experiment-001")
    assert len(tao.get_hooks()) == 8
    train(tao.get_hooks(), range(2))
    tao.log_status({"train/loss": 0.5}, 2)
    close_deliveries()
    assert {body["component"] for body in server.bodies()} == {"sft-experiment-001"}
    assert [body["data"]["status"] for body in server.bodies() if "status" in body.get("data", {})] == [
        "STARTED",
        "SUCCESS",
    ]


def test_only_rank_0_tells(server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "1")
    tao = TAOStatusLogger(status_endpoint=server.url, experiment_name="sft-experiment-001")
    tao.log_status({}, 1)
    assert tao.get_hooks() == {}
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_delivered_is_sent_by_the_next_that_has_the_folder(server: Any, tmp_path: Path) -> None:
    server.always = lambda handler: handler.send_error(503)
    folder = tmp_path / "spool"
    create_status_logger(server.url, "first", spool_dir=folder)({}, 1)
    from hookline_status.delivery import close_all

    close_all(0.3)
    close_deliveries()
    server.always = None
    create_status_logger(server.url, "second", spool_dir=str(folder))({}, 2)
    close_deliveries()
    # By key: an attempt that was under way when the first gave up may have been taken, too.
    by_key = {request.key: (request.body["component"], request.body["step"]) for request in server.accepted}
    assert list(by_key.values()) == [("first", 1), ("second", 2)]


FAILS = """
import sys
from hookline_status import create_training_hooks
hooks = create_training_hooks(sys.argv[1])
hooks["pre_training_hook"](None, {"start_step": 0})
%s
"""


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("raise MemoryError('no room for hunter2-hunter2')", "MemoryError: no room for ********"),
        ("sys.exit(3)", "the process ended before the training did"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_training_that_never_ended_is_told_as_failed_when_the_process_exits(
    server: Any, end: str, message: str
) -> None:
    environ = {**os.environ, "SOME_PASSWORD": "hunter2-hunter2"}
    subprocess.run([sys.executable, "-c", FAILS % end, server.url], capture_output=True, env=environ, check=False)
    last = server.bodies()[-1]
    assert (last["phase"], last["data"]) == ("on_training_failed", {"status": "FAILURE", "message": message})


def test_a_process_with_an_endpoint_that_hangs_exits_all_the_same(server: Any, tmp_path: Path) -> None:
    server.always = lambda handler: handler.server.released.wait(60)
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", FAILS % "", server.url]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, env=environ)
    assert result.returncode == 0
    assert "were not delivered in time" in result.stderr
