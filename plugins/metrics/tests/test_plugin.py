import logging
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hookline.plugins import PluginManager
from hookline.testing import check_plugin
from hookline_hookspecs import TrainerState, hookimpl
from hookline_metrics import Metrics

Run = Callable[..., TrainerState]


@pytest.fixture
def manager(hookline_manager: PluginManager) -> PluginManager:
    """A manager with the plugin."""
    hookline_manager.register(Metrics(hookline_manager.emit), "metrics")
    return hookline_manager


def read(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{folder / 'stats.sqlite'}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


class Offers:
    """A plugin with numbers of its own."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    @hookimpl
    def collect_metrics(self) -> Any:
        return self.numbers


def test_it_is_a_good_plugin() -> None:
    check_plugin(Metrics)


def test_every_number_of_a_report_is_a_row(manager: PluginManager, hookline_state: Run, tmp_path: Path) -> None:
    before = time.time()
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.on_epoch_start(state=hookline_state(epoch=2))
    manager.emit.log_metrics(report_data={"train/loss": 0.5, "train/entropy": 1}, step=7)
    manager.drain()
    rows = read(tmp_path, "SELECT step, epoch, name, value FROM metrics")
    assert rows == [(7, 2, "train/loss", 0.5), (7, 2, "train/entropy", 1.0)]
    [(recorded,)] = read(tmp_path, "SELECT DISTINCT time FROM metrics")
    assert before <= recorded <= time.time()


def test_an_epoch_ends_with_the_statistics_of_the_state_and_of_all_plugins(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    manager.register(Offers({"rewards/acceptance": 0.75}), "rewards")
    state = hookline_state(
        epoch=0, step=8, loss_stats={"loss": 0.5}, rollout_stats={"return": 20.0}, eval_scores={"success": 0.25}
    )
    manager.emit.on_epoch_end(state=state)
    manager.drain()
    assert read(tmp_path, "SELECT step, epoch, name, value FROM metrics ORDER BY name") == [
        (8, 0, "loss", 0.5),
        (8, 0, "return", 20.0),
        (8, 0, "rewards/acceptance", 0.75),
        (8, 0, "success", 0.25),
    ]


def test_a_name_that_two_plugins_claim_stays_with_the_first(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager.register(Offers({"x": 1.0}), "second")
    manager.register(Offers({"x": 2.0}), "first")
    for epoch in range(3):
        manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
    manager.drain()
    assert read(tmp_path, "SELECT value FROM metrics") == [(2.0,)] * 3
    assert caplog.text.count("metric 'x' is claimed by plugin 'first' and by plugin 'second'") == 1


def test_plugins_are_asked_on_the_training_thread(manager: PluginManager, hookline_state: Run) -> None:
    class Watches:
        @hookimpl
        def collect_metrics(self) -> None:
            threads.append(threading.current_thread())

    threads: list[threading.Thread] = []
    manager.register(Watches())
    manager.emit.on_epoch_end(state=hookline_state())
    assert threads == [threading.current_thread()]


def test_the_scores_of_an_evaluation_are_recorded_once(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    state = hookline_state(eval_scores={"success": 0.5})
    for state.epoch, state.step in ((1, 10), (2, 20), (3, 30), (4, 40)):
        if state.epoch == 3:  # another evaluation that happens to give the same
            manager.emit.on_evaluation_end(state=state, scores=state.eval_scores)
        manager.emit.on_epoch_end(state=state)
    manager.drain()
    assert read(tmp_path, "SELECT step, value FROM metrics WHERE name = 'success'") == [(10, 0.5), (30, 0.5)]


def test_the_end_of_a_run_adds_what_is_new_since_its_last_epoch(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    state = hookline_state(epoch=5, step=50, loss_stats={"loss": 0.5})
    manager.emit.on_epoch_end(state=state)
    state.eval_scores["success"] = 1.0
    manager.emit.on_training_complete(state=state)
    manager.drain()
    assert read(tmp_path, "SELECT step, name, value FROM metrics") == [(50, "loss", 0.5), (50, "success", 1.0)]


def test_what_is_not_finite_or_not_a_number(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline.metrics")
    report = {"nan": math.nan, "inf": -math.inf, "on": True, "text": "hello", "nothing": None, "list": [1, 2]}
    manager.emit.on_new_training_run(state=hookline_state())
    for step in (1, 2):
        manager.emit.log_metrics(report_data=report, step=step)
    manager.drain()
    assert read(tmp_path, "SELECT name, value FROM metrics WHERE step = 1") == [
        ("nan", None),
        ("inf", -math.inf),
        ("on", 1.0),
    ]
    assert caplog.text.count("metric 'text' is a str and no number: it is left out") == 1
    assert "nothing" not in caplog.text


def test_the_database_is_readable_while_it_is_written(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.log_metrics(report_data={"loss": 1.0}, step=1)
    manager.drain()
    with closing(sqlite3.connect(tmp_path / "stats.sqlite")) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM metrics").fetchone() == (1,)
        manager.emit.log_metrics(report_data={"loss": 2.0}, step=2)
        assert manager.drain() == []
        assert reader.execute("SELECT count(*) FROM metrics").fetchone() == (1,)
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM metrics").fetchone() == (2,)
    assert not manager.faults


def test_one_metric_is_read_by_its_index(manager: PluginManager, hookline_state: Run, tmp_path: Path) -> None:
    manager.emit.on_epoch_end(state=hookline_state(loss_stats={"loss": 1.0}))
    manager.drain()
    plan = read(tmp_path, "EXPLAIN QUERY PLAN SELECT step, value FROM metrics WHERE name = 'loss' ORDER BY step")
    assert "USING INDEX metrics_by_name" in str(plan)
    assert "TEMP B-TREE" not in str(plan)


@pytest.mark.parametrize("end", ["on_training_complete", "on_training_failed"])
def test_the_end_of_a_run_closes_the_database(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, end: str
) -> None:
    state = hookline_state(loss_stats={"loss": 1.0})
    manager.emit.on_epoch_end(state=state)
    error = {"error": RuntimeError("out of memory")} if end == "on_training_failed" else {}
    getattr(manager.emit, end)(state=state, **error)
    manager.drain()
    # SQLite removes its log when the last connection is closed.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heartbeat", "stats.sqlite"]


def test_a_report_after_the_end_is_kept_and_leaves_nothing_open(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    manager.emit.on_training_complete(state=hookline_state())
    manager.emit.log_metrics(report_data={"late": 1.0}, step=3)
    manager.drain()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heartbeat", "stats.sqlite"]
    assert read(tmp_path, "SELECT name FROM metrics") == [("late",)]


def test_the_heartbeat_is_touched_as_the_run_gets_on(
    manager: PluginManager, hookline_state: Run, tmp_path: Path
) -> None:
    manager.emit.on_new_training_run(state=hookline_state())
    manager.drain()
    heartbeat = tmp_path / "heartbeat"
    for emit in (
        lambda: manager.emit.log_metrics(report_data={}, step=1),
        lambda: manager.emit.on_epoch_start(state=hookline_state()),
        lambda: manager.emit.on_epoch_end(state=hookline_state(epoch=1)),
    ):
        os.utime(heartbeat, (0, 0))
        emit()
        manager.drain()
        assert heartbeat.stat().st_mtime > 0


def test_a_run_without_a_folder_leaves_no_files(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline.metrics")
    state = hookline_state(run_dir=None, loss_stats={"loss": 1.0})
    manager.emit.on_new_training_run(state=state)
    manager.emit.log_metrics(report_data={"loss": 1.0}, step=1)
    manager.emit.on_epoch_end(state=state)
    manager.emit.on_training_complete(state=state)
    assert manager.drain() == []
    assert list(tmp_path.iterdir()) == []
    assert not manager.faults
    assert "they are not kept" in caplog.text


def test_other_ranks_write_nothing(hookline_state: Run, tmp_path: Path) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Metrics(manager.emit))
        state = hookline_state(rank=1, loss_stats={"loss": 1.0})
        manager.emit.on_new_training_run(state=state)
        manager.emit.log_metrics(report_data={"loss": 1.0}, step=1)
        manager.emit.on_epoch_end(state=state)
        manager.emit.on_training_complete(state=state)
    assert list(tmp_path.iterdir()) == []


WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from hookline_metrics.database import Row, StatsDatabase

database = StatsDatabase(Path(sys.argv[1]))
for step in range(50):
    database.write([Row(step, 0, "a", 1.0, 0.0), Row(step, 0, "b", 2.0, 0.0)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "stats.sqlite")], check=False)
    assert child.returncode == -signal.SIGKILL
    assert read(tmp_path, "SELECT count(*), max(step) FROM metrics") == [(100, 49)]


def test_an_unwritable_folder_is_reported_and_does_not_stop_the_run(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stats.sqlite").mkdir()
    manager.emit.on_epoch_end(state=hookline_state(loss_stats={"loss": 1.0}))
    manager.drain()
    assert "plugin 'metrics' failed in on_epoch_end: OperationalError('unable to open database file')" in caplog.text
