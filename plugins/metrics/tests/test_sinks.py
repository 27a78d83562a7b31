import csv
import json
import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import pytest

from hookline.plugin_manager import PluginManager
from hookline_hookspecs import (
    CheckpointRecord,
    Episode,
    HookContext,
    ReplayRecord,
    Rollout,
    TrainerState,
    Turn,
    hookimpl,
)
from hookline_hookspecs.sinks import Report, Run, Sample, Samples, Sink, SinkUnavailableError
from hookline_metrics.collecting import as_scalar
from hookline_metrics.sinks import sink_worker as worker_module
from hookline_metrics.sinks.sink_worker import FLUSH_SECONDS, SinkWorker
from hookline_metrics.sinks.sqlite import SQLiteSink
from hookline_metrics.sinks.text_files import CSVSink, JSONLinesSink

Read = Callable[..., list[tuple[Any, ...]]]
Eventually = Callable[[Callable[[], object]], None]


class Kept(Sink):
    """A sink that records its calls, and can be made to fail or to hang."""

    def __init__(self) -> None:
        self.calls: list[list[Report]] = []
        self.is_closed = False
        self.failures: list[Exception] = []
        self.attempts = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def write(self, reports: Sequence[Report]) -> None:
        self.attempts += 1
        self.may_go_on.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.calls.append(list(reports))

    def close(self) -> None:
        self.is_closed = True

    @property
    def steps(self) -> list[int]:
        return [report.step for call in self.calls for report in call]


def ended(worker: SinkWorker) -> bool:
    worker.end()
    return worker.join(time.monotonic() + 60)


def test_reports_come_in_order_without_a_flush_and_the_sink_is_closed_at_the_end(eventually: Eventually) -> None:
    sink = Kept()
    worker = SinkWorker("kept", lambda: sink, every_report=True)
    for step in range(100):
        worker.put(Report(step, 0, {"loss": 1.0}, 0.0))
    eventually(lambda: len(sink.steps) == 100)
    assert ended(worker)
    assert sink.steps == list(range(100))
    assert sink.is_closed
    assert worker.unwritten == 0


def test_a_report_waits_at_most_two_seconds() -> None:
    assert 2 * FLUSH_SECONDS <= 2.0


def test_reports_of_one_step_come_in_one_call(eventually: Eventually) -> None:
    class ReportsMore(Kept):
        def write(self, reports: Sequence[Report]) -> None:
            super().write(reports)
            if len(self.calls) == 1:  # more of the newest step comes while the others are being written
                worker.put(Report(2, 0, {"reward": 3.0}, 0.0))

    sink = ReportsMore()
    may_open = threading.Event()
    worker = SinkWorker("kept", lambda: may_open.wait() and sink)
    worker.put(Report(1, 0, {"loss": 1.0}, 0.0))
    worker.put(Report(2, 0, {"loss": 2.0}, 0.0))
    may_open.set()
    eventually(lambda: len(sink.steps) == 3)
    assert ended(worker)
    assert [[report.step for report in call] for call in sink.calls] == [[1], [2, 2]]


def test_what_a_sink_failed_to_take_comes_again_and_the_warning_once(
    eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Kept()
    sink.failures = [OSError("disk full"), OSError("disk full")]
    worker = SinkWorker("kept", lambda: sink)
    worker.put(Report(1, 0, {"loss": 1.0}, 0.0))
    eventually(lambda: sink.attempts == 2)
    worker.put(Report(2, 0, {"loss": 2.0}, 0.0))
    eventually(lambda: sink.steps == [1, 2])
    assert ended(worker)
    assert worker.unwritten == 0
    assert worker.error is None
    assert caplog.text.count("metrics could not be written to kept, trying again: OSError: disk full") == 1


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(3)])
def test_what_a_sink_never_took_is_told_with_its_error_though_it_opens_and_closes(
    eventually: Eventually, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    class Full(Kept):
        def write(self, reports: Sequence[Report]) -> None:
            self.attempts += 1
            raise error

    sink = Full()
    worker = SinkWorker("full", lambda: sink)
    worker.put(Report(1, 0, {"loss": 1.0}, 0.0))
    for attempts in (1, 2):
        worker.put_item(CheckpointRecord(step=attempts))
        eventually(lambda attempts=attempts: sink.attempts > attempts)
    assert ended(worker)
    assert sink.is_closed
    assert (worker.unwritten, worker.error) == (1, error)
    assert caplog.text.count("metrics could not be written to full, trying again") == 1


def test_a_sink_that_hangs_costs_bounded_memory_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "CAPACITY", 100)
    sink = Kept()
    sink.may_go_on.clear()
    worker = SinkWorker("kept", lambda: sink, every_report=True)
    for step in range(1000):
        worker.put(Report(step, 0, {"loss": 1.0}, 0.0))
    assert len(worker._waiting) <= 100
    assert worker.lost >= 1000 - 2 * 100
    worker.end()
    assert not worker.join(time.monotonic() + 0.1)
    assert worker.unwritten == 1000
    sink.may_go_on.set()
    assert worker.join(time.monotonic() + 500)
    assert worker.lost == 1000 - len(sink.steps)


def test_a_sink_that_will_never_work_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    tries = []

    def open_sink() -> Sink:
        tries.append(1)
        raise SinkUnavailableError("there is no such package")

    worker = SinkWorker("nothing", open_sink)
    for step in range(10):
        worker.put(Report(step, 0, {"loss": 1.0}, 0.0))
    assert ended(worker)
    assert len(tries) == 1
    assert worker.unwritten == 10
    assert [r.getMessage() for r in caplog.records] == ["metrics are not written to nothing: there is no such package"]


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1500])
def test_the_database_has_all_rows_of_any_number(tmp_path: Path, read: Read, count: int) -> None:
    sink = SQLiteSink(Run(tmp_path))
    sink.write([Report(step, 0, {"a": float(step)}, 0.5) for step in range(count)])
    sink.close()
    assert read("SELECT step, epoch, name, value, time FROM metrics ORDER BY step") == [
        (step, 0, "a", float(step), 0.5) for step in range(count)
    ]


def test_a_call_is_one_transaction(tmp_path: Path, read: Read) -> None:
    sink = SQLiteSink(Run(tmp_path))
    good = Report(1, 0, {f"n{i}": 1.0 for i in range(700)}, 0.0)
    bad = Report(2**70, 0, {"n": 1.0}, 0.0)  # an integer that SQLite cannot hold
    with pytest.raises(OverflowError):
        sink.write([good, bad])
    assert read("SELECT count(*) FROM metrics") == [(0,)]
    sink.write([good])
    sink.close()
    assert read("SELECT count(*) FROM metrics") == [(700,)]


def test_text_files_have_every_number_and_are_appended_to(tmp_path: Path) -> None:
    reports = [Report(1, None, {"a": 0.5, "b": math.nan}, 10.0), Report(2, 0, {"a": math.inf}, 11.0)]
    for part in reports:
        for make in (CSVSink, JSONLinesSink):
            sink = make(Run(tmp_path))
            sink.write([part])
            sink.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["step", "epoch", "name", "value", "time"],
            ["1", "", "a", "0.5", "10.0"],
            ["1", "", "b", "nan", "10.0"],
            ["2", "0", "a", "inf", "11.0"],
        ]
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 1, "epoch": None, "time": 10.0, "numbers": {"a": 0.5, "b": None}},
        {"step": 2, "epoch": 0, "time": 11.0, "numbers": {"a": None}},
    ]


class Registers:
    """A plugin with sinks."""

    def __init__(self, sinks: Any) -> None:
        self.sinks = sinks
        self.runs: list[Run] = []

    @hookimpl
    def register_sinks(self, run: Run) -> Any:
        self.runs.append(run)
        return self.sinks


class KeepsAll(Kept):
    """A sink that keeps samples and files too."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Any] = []

    def write_samples(self, samples: Samples) -> None:
        self.items.append(samples)

    def write_replay(self, replay: ReplayRecord) -> None:
        self.items.append(replay)

    def write_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        self.items.append(checkpoint)


def run_with(manager: PluginManager, state: TrainerState, *registered: Any) -> None:
    """A run of one step with these plugins."""
    for number, plugin in enumerate(registered):
        manager.register(plugin, f"tracker-{number}")
    manager.emit.on_new_training_run(state=state)
    manager.emit.log_metrics(report_data={"loss": 0.5}, step=state.step)
    manager.emit.on_training_complete(state=state)
    manager.drain()


def test_the_options_open_text_files(
    with_metrics: Callable[..., PluginManager], hookline_state: Callable[..., TrainerState], tmp_path: Path
) -> None:
    manager = with_metrics(csv=True, jsonl=True)
    run_with(manager, hookline_state(step=3))
    assert not manager.faults
    assert "0.5" in (tmp_path / "metrics.csv").read_text()
    assert "0.5" in (tmp_path / "metrics.jsonl").read_text()


def test_a_plugin_registers_a_sink_that_is_told_of_the_run_without_secrets(
    manager: PluginManager, hookline_state: Callable[..., TrainerState], tmp_path: Path
) -> None:
    sink, threads = Kept(), []
    plugin = Registers({"kept": lambda: threads.append(threading.current_thread()) or sink})
    state = hookline_state(step=3, resume=True, config={"lr": 0.5, "api_key": "planted", "path": tmp_path})
    run_with(manager, state, plugin)
    assert not manager.faults
    assert [dict(report.numbers) for call in sink.calls for report in call] == [{"loss": 0.5}, {"run/completed": 1.0}]
    assert sink.is_closed
    assert threads[0] is not threading.current_thread()
    (run,) = plugin.runs
    assert (run.folder, run.run_id, run.resume) == (tmp_path, "test-run", True)
    assert run.config == {"lr": 0.5, "api_key": "********", "path": str(tmp_path)}


def test_sinks_get_samples_replays_and_checkpoints_and_one_that_refuses_them_goes_on(
    manager: PluginManager, hookline_state: Callable[..., TrainerState], caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses(Kept):
        def write_replay(self, replay: ReplayRecord) -> None:
            raise OSError("no room")

    keeps, refuses = KeepsAll(), Refuses()
    manager.register(Registers({"keeps": lambda: keeps, "refuses": lambda: refuses}), "trackers")
    state = hookline_state(step=3)
    manager.emit.on_new_training_run(state=state)
    text = Episode(turns=[Turn("user", "2 + 3 ="), Turn("assistant", "5")])
    rollout = Rollout(episodes=[text, Episode("4 + 4 =", "9", reward=0.0), Episode(arrays={"obs": [1]})])
    manager.emit.on_rollout_end(context=HookContext(lesson_id="sums"), rollout=rollout)
    text.reward, text.metadata["verification_result"] = 1.0, "pass"  # known by the end of the epoch
    manager.emit.on_epoch_end(state=state)
    replay, checkpoint = ReplayRecord(step=3), CheckpointRecord(step=3)
    manager.emit.on_replay_saved(state=state, replay=replay)
    manager.emit.on_checkpoint_saved(state=state, checkpoint=checkpoint)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    samples = (
        Sample((("user", "2 + 3 ="), ("assistant", "5")), 1.0, "pass"),
        Sample((("user", "4 + 4 ="), ("assistant", "9")), 0.0),
    )
    assert keeps.items == [Samples(3, "sums", samples), replay, checkpoint]
    assert "ReplayRecord of step 3 was not stored in refuses: OSError: no room" in caplog.text
    assert refuses.steps
    assert refuses.is_closed
    assert not manager.faults


def test_samples_have_no_secrets(
    manager: PluginManager, hookline_state: Callable[..., TrainerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PASSWORD", "planted-in-environment")
    sink = KeepsAll()
    manager.register(Registers({"keeps": lambda: sink}), "tracker")
    manager.emit.on_new_training_run(state=hookline_state())
    rollout = Rollout(episodes=[Episode("Which?", "It is planted-in-environment.")])
    manager.emit.on_rollout_end(context=HookContext(), rollout=rollout)
    manager.emit.on_epoch_end(state=hookline_state())
    manager.emit.on_training_complete(state=hookline_state())
    manager.drain()
    assert [own.messages for own in sink.items[0].episodes] == [(("user", "Which?"), ("assistant", "It is ********."))]


def test_no_more_samples_are_taken_than_the_option_says(
    with_metrics: Callable[..., PluginManager], hookline_state: Callable[..., TrainerState]
) -> None:
    counts = []
    for samples in (0, 2):
        sink = KeepsAll()
        manager = with_metrics(samples=samples)
        manager.register(Registers({"keeps": lambda sink=sink: sink}), "tracker")
        manager.emit.on_new_training_run(state=hookline_state())
        manager.emit.on_rollout_end(context=HookContext(), rollout=Rollout(episodes=[Episode("a", "b")] * 5))
        manager.emit.on_epoch_end(state=hookline_state())
        manager.emit.on_training_complete(state=hookline_state())
        manager.drain()
        counts.append([len(own.episodes) for own in sink.items])
        manager.unregister(name="tracker")
        manager.unregister(name="metrics")
    assert counts == [[], [2]]


@pytest.mark.parametrize(
    ("registered", "shown"),
    [(3, "a int"), ({"good": Kept, "kept": "package.module:Class"}, "'kept': a str"), ({1: Kept}, "1: a type")],
)
def test_what_is_no_sink_is_a_warning_and_the_run_goes_on(
    manager: PluginManager,
    hookline_state: Callable[..., TrainerState],
    read: Read,
    caplog: pytest.LogCaptureFixture,
    registered: Any,
    shown: str,
) -> None:
    run_with(manager, hookline_state(step=3), Registers(registered))
    assert "the sinks of plugin 'tracker-0' are not used: register_sinks must return a dictionary" in caplog.text
    assert f"a sink for each name, not {shown}" in caplog.text
    assert read("SELECT value FROM metrics WHERE name = 'loss'") == [(0.5,)]


def test_of_two_sinks_with_one_name_the_first_is_used(
    manager: PluginManager,
    hookline_state: Callable[..., TrainerState],
    read: Read,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = Kept(), Kept()
    impostor = {"kept": lambda: first, "stats.sqlite": lambda: first}
    run_with(manager, hookline_state(step=3), Registers({"kept": lambda: second}), Registers(impostor))
    assert "sink 'stats.sqlite' of plugin 'tracker-1' is not used: there is another one of that name" in caplog.text
    assert "sink 'kept' of plugin 'tracker-0' is not used: there is another one of that name" in caplog.text
    assert (len(first.steps), len(second.steps)) == (2, 0)
    assert read("SELECT value FROM metrics WHERE name = 'loss'") == [(0.5,)]


def test_a_sink_whose_package_is_missing_is_named_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    def open_sink() -> Sink:
        import no_such_tracker

        return no_such_tracker

    worker = SinkWorker("tracker", open_sink)
    worker.put(Report(1, 0, {"loss": 1.0}, 0.0))
    assert ended(worker)
    expected = "metrics are not written to tracker: ModuleNotFoundError: No module named 'no_such_tracker'"
    assert [record.getMessage() for record in caplog.records] == [expected]


def test_files_for_a_sink_that_hangs_are_bounded_and_those_that_are_lost_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "MAX_ITEMS", 10)
    sink, may_open = KeepsAll(), threading.Event()
    worker = SinkWorker("kept", lambda: may_open.wait() and sink)
    for step in range(25):
        worker.put_item(CheckpointRecord(step=step))
    may_open.set()
    assert ended(worker)
    assert [own.step for own in sink.items] == list(range(10))
    assert "samples, replays and checkpoints not stored in kept: 15" in caplog.text


HANGS_AT_THE_END = """
import sys, time
from pathlib import Path
from hookline.plugin_manager import PluginManager
from hookline_hookspecs import TrainerState, hookimpl
from hookline_hookspecs.sinks import Sink
from hookline_metrics import Metrics, Options, recording

recording.END_SECONDS = recording.EXIT_SECONDS = 0.5

class Hangs:
    @hookimpl
    def register_sinks(self):
        return {"hangs": lambda: time.sleep(1000)}

manager = PluginManager()
manager.register(Metrics(Options(progress="off", system_every=0, steps="all"), manager.emit))
manager.register(Hangs())
state = TrainerState(run_dir=Path(sys.argv[1]))
manager.emit.on_new_training_run(state=state)
for state.step in range(1, 1001):
    manager.emit.log_metrics(report_data={"train/loss": 1.0}, step=state.step)
manager.emit.on_training_complete(state=state)
manager.close()
print("closed", flush=True)
"""


def test_a_tracker_that_fails_after_the_end_of_the_run_is_told_with_its_error(tmp_path: Path) -> None:
    program = HANGS_AT_THE_END.replace("time.sleep(1000)", "time.sleep(1) or sys.exit(3)")
    program = program.replace("recording.END_SECONDS = recording.EXIT_SECONDS = 0.5", "recording.END_SECONDS = 0.1")
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "closed\n"), result.stderr
    assert "hangs is still being written to. The process waits for it at exit" in result.stderr
    assert "reports not written to hangs: 1001 (SystemExit: 3)" in result.stderr


def test_a_tracker_that_hangs_ends_with_the_process_and_the_database_is_whole(tmp_path: Path, read: Read) -> None:
    result = subprocess.run(
        [sys.executable, "-c", HANGS_AT_THE_END, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "closed\n"), result.stderr
    assert "hangs is still being written to. The process waits for it at exit" in result.stderr
    assert "reports not written to hangs: 1001 (it is still busy)" in result.stderr
    assert read("SELECT count(*) FROM metrics WHERE name = 'train/loss'") == [(1000,)]


RUN_AND_WAIT = """
import sys, time
from pathlib import Path
from hookline.plugin_manager import PluginManager
from hookline_hookspecs import CheckpointRecord, Episode, HookContext, ReplayRecord, Rollout, TrainerState, Turn, hookimpl
from hookline_metrics import Metrics, Options

manager = PluginManager()
manager.register(Metrics(Options(progress="off", steps="all"), manager.emit))
state = TrainerState(run_dir=Path(sys.argv[1]))
manager.emit.on_new_training_run(state=state)
manager.emit.pre_training(state=state, report_data={})
for state.step in range(1, 1001):
    manager.emit.log_metrics(report_data={"train/loss": 1.0, "train/entropy": 2.0}, step=state.step)
print("reported", flush=True)
if sys.argv[2] == "wait":
    time.sleep(1000)
"""


def test_nothing_of_what_was_reported_is_lost_to_a_kill_once_the_writer_has_looked(
    tmp_path: Path, read: Read, eventually: Eventually
) -> None:
    child = subprocess.Popen([sys.executable, "-c", RUN_AND_WAIT, str(tmp_path), "wait"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reported\n"
        # The run is not ended and nothing is flushed by hand: it is there all the same.
        eventually(lambda: read("SELECT count(*) FROM metrics WHERE name LIKE 'train/%'") == [(2000,)])
    finally:
        child.kill()
        child.communicate()
    assert read("SELECT count(*), max(step) FROM metrics WHERE name LIKE 'train/%'") == [(2000, 1000)]
    with closing(sqlite3.connect(tmp_path / "stats.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_steps_are_whole_whenever_a_kill_comes(tmp_path: Path, read: Read, eventually: Eventually) -> None:
    endless = RUN_AND_WAIT.replace("range(1, 1001):", "range(1, 10**9):\n    time.sleep(0.0005)")
    child = subprocess.Popen([sys.executable, "-c", endless, str(tmp_path), "wait"])
    try:
        eventually(lambda: read("SELECT 1 FROM metrics WHERE step > 0"))
    finally:
        child.kill()
        child.wait()
    counts = read("SELECT step, count(*) FROM metrics WHERE name LIKE 'train/%' GROUP BY step")
    assert [step for step, _ in counts] == list(range(1, len(counts) + 1))
    assert {count for _, count in counts} == {2}


def test_a_process_that_never_says_that_its_run_is_over_loses_nothing(
    tmp_path: Path, read: Read, run_python: Callable[..., str]
) -> None:
    run_python(RUN_AND_WAIT, str(tmp_path), "end")
    assert read("SELECT count(*), max(step) FROM metrics WHERE name LIKE 'train/%'") == [(2000, 1000)]


def test_steps_that_come_too_fast_are_rows_of_means_with_their_extremes_and_count(
    tmp_path: Path, read: Read, run_python: Callable[..., str]
) -> None:
    fast = RUN_AND_WAIT.replace(', steps="all"', "").replace('"train/loss": 1.0', '"train/loss": float(state.step)')
    run_python(fast.replace("range(1, 1001)", "range(1, 20_001)"), str(tmp_path), "end")
    [(rows, count, total, low, high, last)] = read(
        "SELECT count(*), sum(count), sum(value * count), min(low), max(high), max(step) FROM metrics "
        "WHERE name = 'train/loss' AND count IS NOT NULL"
    )
    [(few, rest)] = read("SELECT count(*), sum(value) FROM metrics WHERE name = 'train/loss' AND count IS NULL")
    assert rows + few < 3000
    assert count + few == 20_000
    assert total + (rest or 0.0) == pytest.approx(sum(range(1, 20_001)))
    assert (high, last) == (20_000.0, 20_000)
    assert low >= 1.0


def test_a_number_of_another_library_is_converted_on_the_thread_of_the_sink(
    manager: PluginManager, hookline_state: Callable[..., TrainerState], read: Read
) -> None:
    class OnAGPU:
        def item(self) -> float:
            threads.append(threading.current_thread())
            return 0.5

    threads: list[threading.Thread] = []
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.log_metrics(report_data={"loss": OnAGPU()}, step=1)
    manager.emit.on_training_complete(state=hookline_state(step=1))
    manager.drain()
    assert read("SELECT value FROM metrics WHERE name = 'loss'") == [(0.5,)]
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("odd", ["text", None, numpy.ones(2), numpy.float32(7.0)], ids=repr)
def test_what_is_no_number_is_left_out_of_a_condensed_report(odd: Any) -> None:
    sink = Kept()
    worker = SinkWorker("kept", lambda: sink)
    for step in range(30_000):
        worker.put(Report(step, 0, {"loss": odd if step == 29_000 else 1.0, "reward": 2.0}, 1e9 + step / 1e5))
    assert ended(worker)
    condensed = [report for call in sink.calls for report in call if report.window is not None]
    counts: Counter[str] = Counter()
    for report in [report for call in sink.calls for report in call]:
        assert {type(value) for value in report.numbers.values()} == {float}
        counts.update(dict.fromkeys(report.numbers, 1 if report.window is None else report.window.count))
    assert condensed
    assert counts == {"loss": 30_000 - (as_scalar(odd) is None), "reward": 30_000}
    assert max(own.window.high.get("loss", 0.0) for own in condensed if own.window) == (as_scalar(odd) or 1.0)


def test_a_flush_has_what_was_put_before_it_written_at_once_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "FLUSH_SECONDS", 3600.0)
    sink = Kept()
    worker = SinkWorker("kept", lambda: sink)
    for step in range(10):
        worker.put(Report(step, 0, {"loss": 1.0}, 0.0))
    assert worker.flush().wait(60)
    assert sink.steps == list(range(10))
    sink.failures = [OSError("disk full")]
    worker.put(Report(10, 0, {"loss": 1.0}, 0.0))
    assert not worker.flush().wait(60)
    assert worker.flush().wait(60)
    assert ended(worker)
    assert worker.flush().wait(60)
