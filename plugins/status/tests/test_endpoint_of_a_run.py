"""The plugin with an endpoint: which messages are sent, when, and what they cost the training thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.session import Session
from hookline.testing import check_plugin
from hookline_hookspecs import EvaluationRequest, TrainerState
from hookline_status import Options, Status
from hookline_status.delivery import CAPACITY

Run = Callable[..., TrainerState]
Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def manager(hookline_manager: PluginManager, server: Any) -> PluginManager:
    """A manager with the plugin, which beats as often as it looks."""
    plugin = Status(Options(endpoint=server.url, component="trainer", heartbeat_seconds=0.001))
    hookline_manager.register(plugin, "status")
    return hookline_manager


def run(manager: PluginManager, state: TrainerState) -> None:
    """Two epochs of two steps, each with a validation of two batches."""
    state.total_epochs = 2
    with Session(manager, state) as session:
        for _ in session.epochs():
            for _ in range(2):
                session.begin_step()
                session.end_step({"train/loss": 0.5})
            session.begin_validation()
            for batch in range(2):
                session.begin_validation_step(batch)
                session.end_validation_step(batch, 0.25)
            session.end_validation(0.25)


def phases(server: Any) -> list[str]:
    return [body["phase"] for body in server.bodies() if "phase" in body]


def test_it_is_a_good_plugin(server: Any) -> None:
    check_plugin(Status, endpoint=server.url)


def test_a_run_is_told_from_start_to_success(manager: PluginManager, server: Any, hookline_state: Run) -> None:
    run(manager, hookline_state())
    bodies = server.bodies()
    assert {body["component"] for body in bodies} == {"trainer"}
    assert [(body["step"], sorted(body["metrics"])) for body in bodies if "step" in body][:3] == [
        (1, ["current_epoch", "current_step", "total_steps", "train/loss"]),
        (2, ["current_epoch", "current_step", "total_steps", "train/loss"]),
        (2, ["current_epoch", "val_avg_loss"]),
    ]
    told = [phase for phase in phases(server) if not phase.endswith(("heartbeat", "step"))]
    # The entries of status.json are made in the background, so that they may come a little later than the others.
    assert sorted(told) == sorted(
        ["on_new_training_run", "pre_training", "post_training", "on_training_complete"]
        + ["pre_validation", "post_validation", "on_epoch_end"] * 2
    )
    assert [phase for phase in told if phase.startswith(("pre", "post"))] == [
        "pre_training", "pre_validation", "post_validation", "pre_validation", "post_validation", "post_training",
    ]  # fmt: skip
    assert {"pre_training_step", "post_training_step", "pre_validation_step", "post_validation_step"} <= set(
        phases(server)
    )
    assert {"training_heartbeat", "validation_heartbeat"} <= set(phases(server))
    assert phases(server)[-1] == "on_training_complete"
    entry = bodies[-1]["data"]
    assert (entry["status"], entry["message"]) == ("SUCCESS", "the run is complete")
    assert (entry["data"]["epoch"], entry["data"]["max_epoch"], entry["data"]["component"]) == (1, 2, "trainer")


class Terminated(SystemExit):
    def __str__(self) -> str:
        return "terminated by SIGTERM"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("no room, said hunter2-hunter2"), "MemoryError: no room, said ********"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Terminated(143), "Terminated: terminated by SIGTERM"),
    ],
)
def test_a_failure_is_told_last_with_its_error(
    manager: PluginManager, server: Any, hookline_state: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    error: BaseException, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SOME_PASSWORD", "hunter2-hunter2")
    with pytest.raises(type(error)), Session(manager, hookline_state()):
        raise error
    last = server.bodies()[-1]
    assert last["phase"] == "on_training_failed"
    assert (last["data"]["status"], last["data"]["message"]) == ("FAILURE", message)
    assert "hunter2" not in (tmp_path / "status.json").read_text()


def heartbeats(server: Any) -> list[dict[str, Any]]:
    return [body["data"] for body in server.bodies() if body.get("phase") == "validation_heartbeat"]


def test_heartbeats_go_on_through_one_batch_of_a_validation_that_lasts(
    manager: PluginManager, server: Any, hookline_state: Run, until: Until
) -> None:
    state, is_done = hookline_state(), threading.Event()

    def wait_for_heartbeats() -> None:
        until(lambda: len(heartbeats(server)) >= 4)
        is_done.set()

    with Session(manager, state) as session:
        session.begin_validation()
        session.begin_validation_step(7)
        watching = threading.Thread(target=wait_for_heartbeats)
        watching.start()
        assert is_done.wait(500)  # the batch: one call, during which the training thread does nothing else
        session.end_validation_step(7, 0.5)
        session.end_validation(0.5)
        watching.join()
    told = [data for data in heartbeats(server) if data.get("batch_index") == 7]
    idle = [data["seconds_since_progress"] for data in told]
    assert len(told) >= 3
    assert idle == sorted(idle)
    assert idle[-1] > 0


def test_no_heartbeat_comes_after_the_end_of_a_run(manager: PluginManager, server: Any, hookline_state: Run) -> None:
    run(manager, hookline_state())
    assert phases(server)[-1] == "on_training_complete"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hookline-status-")]


def test_heartbeats_go_on_through_an_evaluation(
    manager: PluginManager, server: Any, hookline_state: Run, until: Until
) -> None:
    state = hookline_state()
    manager.emit.on_new_training_run(state=state)
    manager.emit.on_evaluation_start(state=state, request=EvaluationRequest())
    until(lambda: len(heartbeats(server)) >= 4)
    manager.emit.on_evaluation_end(state=state, scores={"addition/success_rate": 0.5})
    manager.emit.on_training_complete(state=state)
    manager.drain()
    [end] = [body for body in server.bodies() if body.get("phase") == "on_evaluation_end"]
    assert end["data"] == {"addition/success_rate": 0.5}


def test_what_was_dropped_and_what_waits_is_among_the_metrics(
    hookline_manager: PluginManager, hookline_state: Run, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr("hookline_status.delivery.FLUSH_SECONDS", 0.1)
    hookline_manager.register(Status(Options(endpoint="http://127.0.0.1:9/status")), "status")
    state = hookline_state()
    hookline_manager.emit.on_new_training_run(state=state)
    for step in range(CAPACITY + 500):
        hookline_manager.emit.log_metrics(report_data={}, step=step)

    def metrics() -> Any:
        [(_, found)] = hookline_manager.emit.collect_metrics(state=state).items()
        return found

    until(lambda: metrics()["status/waiting"] == CAPACITY and metrics()["status/dropped"] >= 500)
    hookline_manager.emit.on_training_complete(state=state)
    hookline_manager.drain()


def test_without_an_endpoint_there_are_no_metrics_and_no_threads(
    hookline_manager: PluginManager, hookline_state: Run
) -> None:
    hookline_manager.register(Status(Options()), "status")
    run(hookline_manager, hookline_state())
    assert not hookline_manager.emit.collect_metrics(state=hookline_state())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hookline-status-")]


def test_only_rank_0_tells(server: Any, hookline_state: Run, tmp_path: Path) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Status(Options(endpoint=server.url)))
        run(manager, hookline_state(rank=1))
    assert server.requests == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_folder_is_told_too(
    manager: PluginManager, server: Any, hookline_state: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(manager, hookline_state(run_dir=None))
    assert server.bodies()[-1]["data"]["status"] == "SUCCESS"
    assert list(tmp_path.iterdir()) == []


def test_training_does_not_wait_for_an_endpoint_that_hangs(
    manager: PluginManager, server: Any, hookline_state: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline_status.delivery.FLUSH_SECONDS", 0.1)
    server.always = lambda handler: handler.server.released.wait(60)
    state = hookline_state()
    manager.emit.on_new_training_run(state=state)
    for step in range(1000):
        manager.emit.post_training_step(state=state, report_data={"current_step": step})
        manager.emit.log_metrics(report_data={"train/loss": 0.5}, step=step)
    manager.emit.on_training_complete(state=state)
    assert manager.drain() == [], "and the end gives up in time"
    assert server.accepted == []


def test_importing_it_brings_in_nothing_that_only_an_endpoint_needs() -> None:
    code = (
        "import hookline_status, sys; print(*({'httpcore', 'httpx', 'sqlite3', 'ssl', 'pydantic'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
