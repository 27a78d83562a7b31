import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import check_plugin
from hookline_hookspecs import HookContext, HooklineError, Rollout, TrainerState, hookimpl
from hookline_metrics import Metrics, MetricsHook, Options, monitor_thread, recording
from hookline_metrics.sinks import sink_worker

Run = Callable[..., TrainerState]
Read = Callable[..., list[tuple[Any, ...]]]
Eventually = Callable[[Callable[[], object]], None]


class Offers:
    """A plugin with numbers of its own."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    @hookimpl
    def collect_metrics(self) -> Any:
        return self.numbers


def finish(manager: PluginManager, state: TrainerState) -> None:
    manager.emit.on_training_complete(state=state)
    assert manager.drain() == []


def test_it_is_a_good_plugin() -> None:
    check_plugin(Metrics)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"timer": "clock"}, r"MetricsHook: timer 'clock' has no method get_all_elapsed\(...\)"),
        ({"stats_client": 3}, r"MetricsHook: stats_client 3 has no method record\(...\)"),
        ({"wandb_run": "r1"}, r"MetricsHook: wandb_run 'r1' has no method log\(...\)"),
    ],
)
def test_what_a_hook_cannot_use_is_an_error_when_it_is_made(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(HooklineError, match=expected):
        MetricsHook(**given)


def test_importing_it_brings_in_no_library_that_takes_long(run_python: Callable[[str], str]) -> None:
    loaded = run_python(
        "import sys, hookline_metrics; print(*(m for m in ('rich', 'psutil', 'wandb', 'sqlite3', 'pydantic') if m in sys.modules))"
    )
    assert loaded.split() == []


def test_every_number_of_a_report_is_a_row(manager: PluginManager, hookline_state: Run, read: Read) -> None:
    before = time.time()
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.on_epoch_start(state=hookline_state(epoch=2))
    manager.emit.log_metrics(report_data={"train/loss": 0.5, "train/entropy": 1}, step=7)
    finish(manager, hookline_state(epoch=2, step=7))
    rows = read("SELECT step, epoch, name, value FROM metrics WHERE name LIKE 'train/%'")
    assert rows == [(7, 2, "train/loss", 0.5), (7, 2, "train/entropy", 1.0)]
    [(recorded,)] = read("SELECT DISTINCT time FROM metrics WHERE name LIKE 'train/%'")
    assert before <= recorded <= time.time()


def test_counters_of_a_report_are_columns_and_no_rows(manager: PluginManager, hookline_state: Run, read: Read) -> None:
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.log_metrics(
        report_data={"current_epoch": 3, "current_step": 9, "total_steps": 100, "loss": 0.5}, step=9
    )
    finish(manager, hookline_state(epoch=3, step=9))
    assert read("SELECT step, epoch, name FROM metrics WHERE name NOT LIKE 'run/%'") == [(9, 3, "loss")]


def test_an_epoch_ends_with_the_statistics_of_the_state_and_of_all_plugins(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    manager.register(Offers({"rewards/acceptance": 0.75}), "rewards")
    state = hookline_state(
        epoch=0, step=8, loss_stats={"loss": 0.5}, rollout_stats={"return": 20.0}, eval_scores={"success": 0.25}
    )
    manager.emit.on_epoch_end(state=state)
    finish(manager, state)
    assert read("SELECT step, epoch, name, value FROM metrics WHERE name NOT LIKE 'run/%' ORDER BY name") == [
        (8, 0, "loss", 0.5),
        (8, 0, "return", 20.0),
        (8, 0, "rewards/acceptance", 0.75),
        (8, 0, "success", 0.25),
    ]


def test_what_the_report_of_the_last_step_has_said_is_not_said_again_at_the_end_of_the_epoch(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.log_metrics(report_data={"train/loss": 0.5}, step=8)
    state = hookline_state(step=8, loss_stats={"train/loss": 0.75, "train/kl": 0.1})
    manager.emit.on_epoch_end(state=state)
    finish(manager, state)
    assert read("SELECT name, value FROM metrics WHERE name LIKE 'train/%'") == [("train/loss", 0.5), ("train/kl", 0.1)]


def test_a_name_that_two_plugins_claim_stays_with_the_first(
    manager: PluginManager, hookline_state: Run, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    manager.register(Offers({"x": 1.0}), "second")
    manager.register(Offers({"x": 2.0}), "first")
    for epoch in range(3):
        manager.emit.on_epoch_end(state=hookline_state(epoch=epoch))
    finish(manager, hookline_state(epoch=2))
    assert read("SELECT value FROM metrics WHERE name = 'x'") == [(2.0,)] * 3
    assert caplog.text.count("metric 'x' comes from plugin 'first' and from plugin 'second'") == 1


def test_plugins_are_asked_on_the_training_thread(manager: PluginManager, hookline_state: Run) -> None:
    class Watches:
        @hookimpl
        def collect_metrics(self) -> None:
            threads.append(threading.current_thread())

    threads: list[threading.Thread] = []
    manager.register(Watches())
    manager.emit.on_epoch_end(state=hookline_state())
    assert threads == [threading.current_thread()]


def test_of_two_kinds_of_evaluation_each_has_its_own_scores_recorded(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    state = hookline_state(eval_scores={"full": 0.5, "micro": 0.25})
    manager.emit.on_epoch_end(state=state)
    state.epoch, state.step = 1, 10
    state.eval_scores["micro"] = 0.75
    manager.emit.on_evaluation_end(state=state, scores={"micro": 0.75})
    manager.emit.on_epoch_end(state=state)
    finish(manager, state)
    assert read("SELECT step, value FROM metrics WHERE name = 'full'") == [(0, 0.5)]
    assert read("SELECT step, value FROM metrics WHERE name = 'micro'") == [(0, 0.25), (10, 0.75)]


def test_the_scores_of_an_evaluation_are_recorded_once(manager: PluginManager, hookline_state: Run, read: Read) -> None:
    state = hookline_state(eval_scores={"success": 0.5})
    for state.epoch, state.step in ((1, 10), (2, 20), (3, 30), (4, 40)):
        if state.epoch == 3:  # another evaluation that happens to give the same
            manager.emit.on_evaluation_end(state=state, scores=state.eval_scores)
        manager.emit.on_epoch_end(state=state)
    finish(manager, state)
    assert read("SELECT step, value FROM metrics WHERE name = 'success'") == [(10, 0.5), (30, 0.5)]


def test_the_end_of_a_run_adds_what_is_new_since_its_last_epoch(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    state = hookline_state(epoch=5, step=50, loss_stats={"loss": 0.5})
    manager.emit.on_epoch_end(state=state)
    state.eval_scores["success"] = 1.0
    finish(manager, state)
    assert read("SELECT step, name, value FROM metrics") == [
        (50, "loss", 0.5),
        (50, "success", 1.0),
        (50, "run/completed", 1.0),
    ]


def test_what_is_not_finite_or_not_a_number(
    manager: PluginManager, hookline_state: Run, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline.metrics")
    report = {"nan": math.nan, "inf": -math.inf, "on": True, "text": "hello", "nothing": None, "list": [1, 2]}
    manager.emit.on_new_training_run(state=hookline_state())
    for step in (1, 2):
        manager.emit.log_metrics(report_data=report, step=step)
    finish(manager, hookline_state(step=2))
    assert read("SELECT name, value FROM metrics WHERE step = 1") == [("nan", None), ("inf", -math.inf), ("on", 1.0)]
    assert caplog.text.count("metric 'text' is left out: it is a str, not a number") == 1
    assert "nothing" not in caplog.text


def test_a_report_that_its_owner_changes_afterwards_is_recorded_as_it_was(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    report = {"loss": 1.0}
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.log_metrics(report_data=report, step=1)
    report["loss"] = 99.0
    finish(manager, hookline_state(step=1))
    assert read("SELECT value FROM metrics WHERE name = 'loss'") == [(1.0,)]


def test_numbers_that_their_plugin_changes_afterwards_are_recorded_as_they_were(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    numbers = {"x": 1.0}
    manager.register(Offers(numbers), "keeps its dictionary")
    manager.emit.on_epoch_end(state=hookline_state(epoch=0, step=1))
    numbers["x"] = 2.0
    numbers["y"] = 3.0
    manager.emit.on_epoch_end(state=hookline_state(epoch=1, step=2))
    numbers.clear()
    finish(manager, hookline_state(epoch=1, step=2))
    assert read("SELECT step, name, value FROM metrics WHERE name IN ('x', 'y')") == [
        (1, "x", 1.0),
        (2, "x", 2.0),
        (2, "y", 3.0),
    ]


def test_a_run_that_is_tried_again_in_one_folder_has_all_metrics_of_both(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    for loss in (0.5, 0.25):
        state = hookline_state(epoch=0, step=4, loss_stats={"loss": loss})
        manager.emit.on_new_training_run(state=state)
        manager.emit.on_epoch_end(state=state)
        finish(manager, state)
    assert read("SELECT value FROM metrics WHERE name = 'loss'") == [(0.5,), (0.25,)]


def test_notes_that_no_thread_takes_are_bounded_and_their_reports_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_NOTED", 100)
    monkeypatch.setattr(recording, "END_SECONDS", 0.1)
    monkeypatch.setattr(sink_worker, "CAPACITY", 300)
    never = threading.Event()
    hangs = recording.Recording(tmp_path, {"hangs": never.wait}, Options(progress="off", system_every=0))  # type: ignore[dict-item]
    with hangs._digesting:  # as another thread has that hangs, and does not come back
        for step in range(150):
            hangs.later(hangs.digest.add_report, step, {"loss": 1.0}, 0.0)
        assert len(hangs._noted) == 150
    for step in range(850):
        hangs.later(hangs.digest.add_report, step, {"loss": 1.0}, 0.0)
    assert len(hangs._noted) <= 100
    assert [worker.unwritten for worker in hangs._workers] >= [900]
    assert list(hangs.end()) == []
    assert [worker.unwritten for worker in hangs._workers] == [1000]


def test_an_event_that_cannot_be_digested_is_a_failure_of_the_plugin_and_costs_no_other_metrics(
    manager: PluginManager, hookline_state: Run, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down() -> None:
        raise ValueError("no such lesson")

    plugin = manager.get_plugin("metrics")
    assert isinstance(plugin, Metrics)
    state = hookline_state(epoch=0, step=1, loss_stats={"loss": 0.5})
    manager.emit.on_new_training_run(state=state)
    assert plugin._recording is not None
    plugin._recording.later(break_down)
    plugin._recording.later(break_down)
    manager.emit.on_epoch_end(state=state)
    finish(manager, state)
    assert "events whose metrics are left out: 2, the first at break_down: ValueError: no such lesson" in caplog.text
    assert manager.faults
    assert read("SELECT value FROM metrics WHERE name = 'loss'") == [(0.5,)]


def test_the_database_is_readable_while_it_is_written(
    manager: PluginManager, hookline_state: Run, read: Read, tmp_path: Path, eventually: Eventually
) -> None:
    def rows(connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT count(*) FROM metrics").fetchone()[0])

    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.log_metrics(report_data={"loss": 1.0}, step=1)
    eventually(lambda: read("SELECT 1 FROM metrics"))
    with closing(sqlite3.connect(tmp_path / "stats.sqlite")) as reader:
        reader.execute("BEGIN")
        assert rows(reader) == 1
        manager.emit.log_metrics(report_data={"loss": 2.0}, step=2)
        eventually(lambda: len(read("SELECT 1 FROM metrics")) == 2)
        assert rows(reader) == 1
        reader.execute("COMMIT")
        assert rows(reader) == 2
    assert not manager.faults


def test_one_metric_is_read_without_a_look_at_the_others(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    manager.emit.on_epoch_end(state=hookline_state(loss_stats={"loss": 1.0}))
    finish(manager, hookline_state())
    plan = read("EXPLAIN QUERY PLAN SELECT step, value FROM metrics WHERE name = 'loss' ORDER BY step")
    assert "SEARCH numbers USING PRIMARY KEY (name=?)" in str(plan)
    assert "SCAN" not in str(plan)


@pytest.mark.parametrize("end", ["on_training_complete", "on_training_failed"])
def test_the_end_of_a_run_writes_all_that_was_reported_and_closes_the_database(
    manager: PluginManager, hookline_state: Run, read: Read, tmp_path: Path, end: str
) -> None:
    state = hookline_state(loss_stats={"loss": 1.0})
    manager.emit.on_new_training_run(state=state)
    manager.emit.pre_training(state=state, report_data={})
    for state.step in range(1, 501):
        manager.emit.log_metrics(report_data={"train/loss": 1.0}, step=state.step)
    manager.emit.on_epoch_end(state=state)
    error = {"error": RuntimeError("out of memory")} if end == "on_training_failed" else {}
    getattr(manager.emit, end)(state=state, **error)
    manager.drain()
    # SQLite removes its log when the last connection is closed.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heartbeat", "stats.sqlite"]
    counted = "SELECT sum(coalesce(count, 1)), max(step) FROM metrics WHERE name = 'train/loss'"
    assert read(counted) == [(500, 500)]
    ended = "run/completed" if end == "on_training_complete" else "run/failed"
    assert read("SELECT step FROM metrics WHERE name = '" + ended + "'") == [(500,)]


def test_a_run_that_could_not_start_changes_nothing_in_its_folder_but_the_heartbeat(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    for _ in range(2):
        state = hookline_state()
        manager.emit.on_new_training_run(state=state)
        manager.emit.on_training_failed(state=state, error=RuntimeError("there is a run here already"))
        manager.drain()
    assert read("SELECT count(*) FROM metrics") == [(0,)]


def test_a_report_outside_of_a_run_is_not_kept_and_said_so(
    manager: PluginManager, hookline_state: Run, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline.metrics")
    finish(manager, hookline_state())
    for step in (3, 4):
        manager.emit.log_metrics(report_data={"late": 1.0}, step=step)
    assert read("SELECT name FROM metrics") == [("run/completed",)]
    assert caplog.text.count("metrics logged before a run starts or after it ends are not recorded") == 1


def test_a_second_run_of_the_same_process_has_a_database_of_its_own(
    manager: PluginManager, hookline_state: Run, read: Read, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        state = hookline_state(run_dir=tmp_path / name, step=1)
        manager.emit.on_new_training_run(state=state)
        manager.emit.log_metrics(report_data={name: 1.0}, step=1)
        finish(manager, state)
    query = "SELECT name FROM metrics ORDER BY time"
    assert read(query, tmp_path / "one") == [("one",), ("run/completed",)]
    assert read(query, tmp_path / "two") == [("two",), ("run/completed",)]


def test_the_heartbeat_is_touched_whatever_the_training_thread_does_until_the_run_is_over(
    manager: PluginManager,
    hookline_state: Run,
    tmp_path: Path,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor_thread, "LOOK_SECONDS", 0.05)
    heartbeat = tmp_path / "heartbeat"
    others = set(threading.enumerate())
    state = hookline_state()
    manager.emit.on_new_training_run(state=state)
    manager.emit.pre_validation(state=state, report_data={})
    for _ in range(3):  # in one batch, of which no event comes
        eventually(heartbeat.exists)
        heartbeat.unlink()
    finish(manager, state)
    heartbeat.unlink(missing_ok=True)
    left = {thread.name for thread in threading.enumerate() if thread not in others}
    assert "hookline-metrics-monitor" not in left
    assert not heartbeat.exists()


def test_a_run_whose_training_thread_has_ended_has_no_heartbeat(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(monitor_thread, "LOOK_SECONDS", 0.01)
    look = monitor_thread.MonitorThread._look
    monkeypatch.setattr(monitor_thread.MonitorThread, "_look", lambda self: (look(self), looks.append(1)))
    thread = threading.Thread(target=manager.emit.on_new_training_run, kwargs={"state": hookline_state()})
    thread.start()
    thread.join()
    seen = len(looks)
    eventually(lambda: len(looks) > seen + 1)  # a look that began when the thread had ended
    (tmp_path / "heartbeat").unlink(missing_ok=True)
    seen = len(looks)
    eventually(lambda: len(looks) > seen + 3)
    assert not (tmp_path / "heartbeat").exists()
    finish(manager, hookline_state())


def test_a_run_without_a_folder_leaves_no_files(manager: PluginManager, hookline_state: Run, tmp_path: Path) -> None:
    state = hookline_state(run_dir=None, loss_stats={"loss": 1.0})
    manager.emit.on_new_training_run(state=state)
    manager.emit.log_metrics(report_data={"loss": 1.0}, step=1)
    manager.emit.on_epoch_end(state=state)
    finish(manager, state)
    assert list(tmp_path.iterdir()) == []
    assert not manager.faults


def test_other_ranks_write_nothing(hookline_state: Run, tmp_path: Path) -> None:
    with PluginManager(rank=1) as manager:
        manager.register(Metrics(Options(), manager.emit))
        state = hookline_state(rank=1, loss_stats={"loss": 1.0})
        manager.emit.on_new_training_run(state=state)
        manager.emit.log_metrics(report_data={"loss": 1.0}, step=1)
        manager.emit.on_rollout_end(context=HookContext(lesson_id="a"), rollout=Rollout())
        manager.emit.on_epoch_end(state=state)
        manager.emit.on_training_complete(state=state)
    assert list(tmp_path.iterdir()) == []


def test_lessons_are_rows_when_they_are_unlocked_and_when_they_graduate(
    manager: PluginManager, hookline_state: Run, read: Read
) -> None:
    state = hookline_state(step=0)
    manager.emit.on_new_training_run(state=state)
    context = HookContext(lesson_id="sums", metadata={"performance": 0.5})
    manager.emit.on_rollout_end(context=context, rollout=Rollout(stats={"mean_reward": 0.75}))
    manager.emit.log_metrics(report_data={}, step=4)
    manager.emit.on_curriculum_update(context=HookContext(), changes={"sums": "graduated", "products": "unlocked"})
    context = HookContext(lesson_id="products", metadata={"performance": 0.25})
    manager.emit.on_rollout_end(context=context, rollout=Rollout())
    finish(manager, hookline_state(step=4))
    assert read("SELECT step, name, value FROM metrics WHERE name LIKE 'curriculum/%'") == [
        (0, "curriculum/sums/unlocked", 1.0),
        (0, "curriculum/sums/success", 0.5),
        (0, "curriculum/sums/reward", 0.75),
        (4, "curriculum/sums/graduated", 1.0),
        (4, "curriculum/products/unlocked", 1.0),
        (4, "curriculum/products/success", 0.25),
    ]


def test_a_database_that_cannot_be_written_is_reported_and_does_not_stop_the_run(
    manager: PluginManager, hookline_state: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stats.sqlite").mkdir()
    state = hookline_state(loss_stats={"loss": 1.0})
    manager.emit.on_epoch_end(state=state)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    assert "could not be written to stats.sqlite, trying again: OperationalError" in caplog.text
    assert "reports not written to stats.sqlite: 2 (OperationalError: unable to open database file)" in caplog.text
    assert manager.faults


def test_what_makes_no_sense_as_an_option_is_refused() -> None:
    with pytest.raises(ValueError, match="gradients_every must be 0 or more, got -1"):
        Options(gradients_every=-1)
    with pytest.raises(ValueError, match="system_every must be 0 or more, got nan"):
        Options(system_every=math.nan)
    with pytest.raises(ValueError, match="samples must be 0 or more, got -1"):
        Options(samples=-1)


def test_epochs_before_the_first_rollout_of_a_worker_are_a_warm_start(
    with_metrics: Callable[..., PluginManager], hookline_state: Run
) -> None:
    manager = with_metrics()
    plugin = manager.get_plugin("metrics")
    assert isinstance(plugin, Metrics)
    state = hookline_state(epoch=0, total_epochs=3)
    manager.emit.on_new_training_run(state=state)
    assert plugin._recording is not None
    live = plugin._recording.live
    assert live.epoch_kind == "train"
    manager.emit.on_weights_updated(context=HookContext(), version=0)
    manager.emit.on_epoch_end(state=state)
    plugin._recording.catch_up()
    assert (live.epoch_kind, live.complete_epochs, len(live.epoch_ends)) == ("warm start", 1, 1)
    state.epoch = 1
    manager.emit.on_rollout_start(context=HookContext())
    manager.emit.on_epoch_end(state=state)
    manager.emit.on_weights_updated(context=HookContext(), version=1)
    plugin._recording.catch_up()
    assert (live.epoch_kind, live.complete_epochs, len(live.epoch_ends)) == ("rollout", 2, 1)
    finish(manager, state)
