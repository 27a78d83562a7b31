import json
import math
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import check_plugin
from hookline_hookspecs import TrainerState
from hookline_status import Options, Status
from hookline_status.status_file import KEPT_ENTRIES

Run = Callable[..., TrainerState]


@pytest.fixture
def manager(hookline_manager: PluginManager) -> PluginManager:
    """A manager with the plugin."""
    hookline_manager.register(Status(Options(component="trainer")), "status")
    return hookline_manager


def read(folder: Path) -> Any:
    return json.loads((folder / "status.json").read_text())


def test_it_is_a_good_plugin() -> None:
    check_plugin(Status, component="trainer")


def test_a_run_that_ends_well_is_told_from_start_to_success(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    state = hookline_state(total_epochs=2)
    manager.emit.on_new_training_run(state=state)
    for state.epoch in range(2):
        manager.emit.on_epoch_end(state=state)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    entries = read(tmp_path)
    assert [entry["status"] for entry in entries] == ["STARTED", "RUNNING", "RUNNING", "SUCCESS"]
    assert entries[0]["message"] == "run test-run has started"
    assert all(datetime.fromisoformat(entry["date"]).utcoffset() == timedelta(0) for entry in entries)


@pytest.mark.parametrize(
    ("options", "running"),
    [
        ({"every": 2}, ["epoch 1", "epoch 3"]),
        ({"every_steps": 6}, ["step 6", "step 12"]),
        ({"every": 2, "every_steps": 6}, ["step 6", "epoch 1", "step 12", "epoch 3"]),
    ],
)
def test_it_tells_every_so_many_epochs_or_steps(
    hookline_manager: PluginManager, hookline_state: Run, tmp_path: Path, options: dict[str, int], running: list[str]
) -> None:
    hookline_manager.register(Status(Options(**options)), "status")
    state = hookline_state()
    for state.epoch in range(4):
        for _ in range(4):
            state.step += 1
            hookline_manager.emit.post_training_step(state=state, report_data={})
        hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_training_complete(state=state)
    hookline_manager.drain()
    assert [entry["message"] for entry in read(tmp_path)[:-1]] == [f"{what} is complete" for what in running]


@pytest.mark.parametrize("option", ["every", "every_steps"])
def test_an_interval_of_nothing_is_an_error(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        Options(**{option: 0})


def test_each_entry_says_what_is_known(manager: PluginManager, hookline_state: Run, tmp_path: Path) -> None:
    state = hookline_state(epoch=3, step=32, total_epochs=10, loss_stats={"loss": 0.5}, eval_scores={"success": 1})
    manager.emit.on_epoch_end(state=state)
    manager.drain()
    [entry] = read(tmp_path)
    assert entry["message"] == "epoch 3 is complete"
    assert entry["kpi"] == {"loss": 0.5, "success": 1.0}
    assert entry["data"] == {
        "component": "trainer",
        "epoch": 3,
        "max_epoch": 10,
        "step": 32,
        "max_step": None,
        "time_per_epoch": None,
        "eta": None,
    }


def test_the_time_that_is_left_follows_from_the_epochs_of_this_process(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("hookline_status.plugin.time.monotonic", lambda: now)
    manager.emit.pre_training(state=hookline_state(epoch=5), report_data={})
    now += 30.0  # nothing is drained before: the time runs from the event, whenever the background comes to it
    manager.emit.on_epoch_end(state=hookline_state(epoch=7, total_epochs=20))
    manager.drain()
    monkeypatch.undo()
    data = read(tmp_path)[-1]["data"]
    assert (data["time_per_epoch"], data["eta"]) == ("0:00:10", "0:02:00")


def test_an_open_ended_run_has_no_time_left_to_tell(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    manager.emit.pre_training(state=hookline_state(), report_data={})
    manager.emit.on_epoch_end(state=hookline_state())
    manager.drain()
    data = read(tmp_path)[-1]["data"]
    assert data["time_per_epoch"].startswith("0:00:00")
    assert data["eta"] is None


@pytest.mark.parametrize(
    ("error", "message"), [(MemoryError("no room"), "MemoryError: no room"), (KeyboardInterrupt(), "KeyboardInterrupt")]
)
def test_a_failure_is_told_with_its_error(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, error: BaseException, message: str
) -> None:
    manager.emit.on_training_failed(state=hookline_state(), error=error)
    manager.drain()
    assert (read(tmp_path)[-1]["status"], read(tmp_path)[-1]["message"]) == ("FAILURE", message)


def test_a_long_run_keeps_its_start_and_its_latest_entries(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("RUNNING_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(f"hookline_status.plugin.{pause}", 0.0)
    manager.emit.on_new_training_run(state=hookline_state())
    for epoch in range(KEPT_ENTRIES + 20):
        manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
    manager.emit.on_training_complete(state=hookline_state(epoch=epoch))
    manager.drain()
    entries = read(tmp_path)
    assert len(entries) == KEPT_ENTRIES + 1
    assert [entries[0]["status"], entries[-1]["status"]] == ["STARTED", "SUCCESS"]
    assert [entry["data"]["epoch"] for entry in entries[1:-1]] == list(range(21, KEPT_ENTRIES + 20))


@pytest.mark.parametrize(("total", "every"), [(None, 1), (1, 1), (100, 1), (101, 2), (1000, 10)])
def test_a_run_has_about_a_hundred_entries_by_default(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, total: int | None, every: int
) -> None:
    state = hookline_state(total_epochs=total)
    manager.emit.pre_training(state=state, report_data={})
    for state.epoch in range(30):
        manager.emit.on_epoch_end(state=state)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    assert [entry["data"]["epoch"] for entry in read(tmp_path)[:-1]] == [*range(every - 1, 30, every)]


@pytest.mark.parametrize(
    ("options", "latest"), [({"every": 1}, [98, 99, 199, 299, 399]), ({}, [28, 29, 39, 49, 379, 389, 399])]
)
def test_a_fast_run_has_few_entries_after_the_first(
    hookline_manager: PluginManager,
    hookline_state: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, int],
    latest: list[int],
) -> None:
    hookline_manager.register(Status(Options(**options)), "status")
    now = 100.0
    monkeypatch.setattr("hookline_status.plugin.time.monotonic", lambda: now)
    hookline_manager.emit.on_new_training_run(state=hookline_state())
    for epoch in range(KEPT_ENTRIES + 300):
        now += 0.0505
        hookline_manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
        hookline_manager.drain()
    monkeypatch.undo()
    hookline_manager.emit.on_training_complete(state=hookline_state(epoch=epoch))
    hookline_manager.drain()
    epochs = [entry["data"]["epoch"] for entry in read(tmp_path) if entry["status"] == "RUNNING"]
    assert [epoch for epoch in epochs if epoch in latest] == latest
    assert epochs[-3:] == latest[-3:]
    assert len(epochs) == (99 if options else 67)


def test_a_number_that_json_lacks_is_null(manager: PluginManager, hookline_state: Run, tmp_path: Path) -> None:
    stats = {"nan": math.nan, "inf": math.inf, "text": "no number"}
    manager.emit.on_epoch_end(state=hookline_state(loss_stats=stats))
    manager.drain()
    assert read(tmp_path)[-1]["kpi"] == {"nan": None, "inf": None}


def test_a_reader_never_sees_half_a_file(manager: PluginManager, hookline_state: Run, tmp_path: Path) -> None:
    manager.emit.on_new_training_run(state=hookline_state())
    manager.drain()
    done = threading.Event()
    lengths = []

    def watch() -> None:
        while not done.is_set():
            lengths.append(len(read(tmp_path)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for epoch in range(50):
        manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
    manager.drain()
    done.set()
    watcher.join()
    assert lengths == sorted(lengths)
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_run_that_starts_again_begins_the_file_anew(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    for _ in range(2):
        manager.emit.on_new_training_run(state=hookline_state())
        for epoch in range(2):
            manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
    manager.emit.on_training_complete(state=hookline_state(epoch=1))
    manager.drain()
    assert [entry["status"] for entry in read(tmp_path)] == ["STARTED", "RUNNING", "RUNNING", "SUCCESS"]


def test_a_run_without_a_folder_leaves_no_files(manager: PluginManager, hookline_state: Run, tmp_path: Path) -> None:
    manager.emit.on_new_training_run(state=hookline_state(run_dir=None))
    manager.drain()
    assert list(tmp_path.iterdir()) == []
    assert not manager.faults


def test_only_rank_0_tells_its_status(hookline_state: Run, tmp_path: Path) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Status(Options()))
        manager.emit.on_new_training_run(state=hookline_state(rank=1))
        manager.emit.on_training_complete(state=hookline_state(rank=1))
    assert list(tmp_path.iterdir()) == []
