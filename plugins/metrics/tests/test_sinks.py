import csv
import json
import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager import PluginManager
from hookline_hookspecs import TrainerState
from hookline_metrics.sinks import Report, Run, Sink, SinkUnavailableError
from hookline_metrics.sinks import sink_worker as worker_module
from hookline_metrics.sinks.sink_worker import FLUSH_SECONDS, SinkWorker
from hookline_metrics.sinks.sqlite import SQLiteSink
from hookline_metrics.sinks.text_files import CSVSink, JSONLinesSink

Read = Callable[..., list[tuple[Any, ...]]]
Eventually = Callable[[Callable[[], object]], None]


class Kept:
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


def test_reports_come_in_order_without_anybody_asking_and_the_sink_is_closed_at_the_end(eventually: Eventually) -> None:
    sink = Kept()
    worker = SinkWorker("kept", lambda: sink)
    for step in range(100):
        worker.put(step, 0, {"loss": 1.0}, 0.0)
    eventually(lambda: len(sink.steps) == 100)
    assert ended(worker)
    assert sink.steps == list(range(100))
    assert sink.is_closed
    assert worker.unwritten == 0


def test_a_report_waits_at_most_a_second() -> None:
    assert 2 * FLUSH_SECONDS <= 1.0


def test_reports_of_one_step_come_in_one_call(eventually: Eventually) -> None:
    class ReportsMore(Kept):
        def write(self, reports: Sequence[Report]) -> None:
            super().write(reports)
            if len(self.calls) == 1:  # more of the newest step comes while the others are being written
                worker.put(2, 0, {"reward": 3.0}, 0.0)

    sink = ReportsMore()
    may_open = threading.Event()
    worker = SinkWorker("kept", lambda: may_open.wait() and sink)
    worker.put(1, 0, {"loss": 1.0}, 0.0)
    worker.put(2, 0, {"loss": 2.0}, 0.0)
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
    worker.put(1, 0, {"loss": 1.0}, 0.0)
    eventually(lambda: sink.attempts == 2)
    worker.put(2, 0, {"loss": 2.0}, 0.0)
    eventually(lambda: sink.steps == [1, 2])
    assert ended(worker)
    assert worker.unwritten == 0
    assert worker.error is None
    assert caplog.text.count("metrics could not be written to kept, trying again: OSError: disk full") == 1


def test_a_sink_that_hangs_costs_bounded_memory_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "CAPACITY", 100)
    sink = Kept()
    sink.may_go_on.clear()
    worker = SinkWorker("kept", lambda: sink)
    for step in range(1000):
        worker.put(step, 0, {"loss": 1.0}, 0.0)
    assert len(worker._waiting) <= 100
    assert worker.lost >= 1000 - 2 * 100
    worker.end()
    assert not worker.join(time.monotonic() + 0.1)
    assert worker.unwritten == 1000
    sink.may_go_on.set()
    assert worker.join(time.monotonic() + 60)
    assert worker.lost == 1000 - len(sink.steps)


def test_a_sink_that_will_never_work_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    tries = []

    def open_sink() -> Sink:
        tries.append(1)
        raise SinkUnavailableError("there is no such package")

    worker = SinkWorker("nothing", open_sink)
    for step in range(10):
        worker.put(step, 0, {"loss": 1.0}, 0.0)
    assert ended(worker)
    assert len(tries) == 1
    assert worker.unwritten == 10
    assert [r.getMessage() for r in caplog.records] == ["metrics are not written to nothing: there is no such package"]


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1500])
def test_the_database_has_all_rows_of_any_number(tmp_path: Path, read: Read, count: int) -> None:
    sink = SQLiteSink(Run(tmp_path))
    sink.write([Report(step, 0, {"a": float(step)}, 0.5) for step in range(count)])
    sink.close()
    assert read("SELECT step, epoch, name, value, time FROM metrics ORDER BY rowid") == [
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


def test_the_options_open_sinks_also_one_of_your_own(
    with_metrics: Callable[..., PluginManager],
    hookline_state: Callable[..., TrainerState],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "my_sinks.py").write_text(
        "class Printed:\n"
        "    def __init__(self, run):\n"
        "        self.file = (run.folder / 'printed.txt').open('a')\n"
        "    def write(self, reports):\n"
        "        for report in reports:\n"
        "            print(report.step, dict(report.numbers), file=self.file)\n"
        "    def close(self):\n"
        "        self.file.close()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    manager = with_metrics(csv=True, jsonl=True, sinks=("my_sinks:Printed",))
    state = hookline_state(run_dir=tmp_path / "run", step=3)
    manager.emit.on_new_training_run(state=state)
    manager.emit.log_metrics(report_data={"loss": 0.5}, step=3)
    manager.emit.on_training_complete(state=state)
    manager.drain()
    assert not manager.faults
    assert (tmp_path / "run" / "printed.txt").read_text() == "3 {'loss': 0.5}\n3 {'run/completed': 1.0}\n"
    assert "0.5" in (tmp_path / "run" / "metrics.csv").read_text()
    assert "0.5" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_sink_that_is_not_there_is_named_and_the_run_goes_on(
    with_metrics: Callable[..., PluginManager],
    hookline_state: Callable[..., TrainerState],
    read: Read,
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = with_metrics(sinks=("no_such_module:Sink",))
    manager.emit.on_new_training_run(state=hookline_state())
    manager.emit.log_metrics(report_data={"loss": 0.5}, step=3)
    manager.emit.on_training_complete(state=hookline_state(step=3))
    manager.drain()
    assert (
        "metrics are not written to no_such_module:Sink: it cannot be imported: No module named 'no_such_module'. "
        "It is named in the option `sinks`" in caplog.text
    )
    assert read("SELECT value FROM metrics WHERE name = 'loss'") == [(0.5,)]


RUN_AND_WAIT = """
import sys, time
from pathlib import Path
from hookline.plugin_manager import PluginManager
from hookline_hookspecs import TrainerState
from hookline_metrics import Metrics, Options

manager = PluginManager()
manager.register(Metrics(Options(progress="off"), manager.emit))
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


def test_a_flush_has_what_was_put_before_it_written_at_once_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "FLUSH_SECONDS", 3600.0)
    sink = Kept()
    worker = SinkWorker("kept", lambda: sink)
    for step in range(10):
        worker.put(step, 0, {"loss": 1.0}, 0.0)
    assert worker.flush().wait(60)
    assert sink.steps == list(range(10))
    sink.failures = [OSError("disk full")]
    worker.put(10, 0, {"loss": 1.0}, 0.0)
    assert not worker.flush().wait(60)
    assert worker.flush().wait(60)
    assert ended(worker)
    assert worker.flush().wait(60)
