import math
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from hookline_hookspecs.sinks import Report, Run
from hookline_metrics.run_reader import ALIVE_SECONDS, RunReader, is_run, run_folders
from hookline_metrics.sinks.sqlite import SQLiteSink
from hookline_metrics.summaries import headline, lesson_scores


def write(folder: Path, *reports: tuple[int, dict[str, float]], epoch: int | None = 0) -> None:
    """A stretch of a run, as one process leaves it."""
    sink = SQLiteSink(Run(folder))
    sink.write([Report(step, epoch, numbers, 1000.0 + step) for step, numbers in reports])
    sink.close()


def test_of_a_step_that_was_repeated_the_latest_row_counts(tmp_path: Path) -> None:
    write(tmp_path, (0, {"run/started": 1.0}), (1, {"loss": 9.0}), (2, {"loss": 8.0}))
    write(tmp_path, (1, {"run/started": 1.0}), (2, {"loss": 7.0}), (3, {"loss": 6.0}))
    with RunReader(tmp_path) as run:
        series = run.series("loss")
    assert series.steps == [1, 2, 3]
    assert series.values == [9.0, 7.0, 6.0]
    assert series.last == 6.0


def test_steps_that_a_resumed_run_never_got_to_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, (0, {"run/started": 1.0}), *((step, {"loss": float(step)}) for step in range(1, 10)))
    write(tmp_path, (4, {"run/started": 1.0}), (5, {"loss": 55.0}))
    with RunReader(tmp_path) as run:
        assert run.series("loss").values == [1.0, 2.0, 3.0, 4.0, 55.0]
        assert run.last("loss") == 55.0
        assert run.step == 5


def test_a_run_that_begins_anew_in_the_same_folder_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, (0, {"run/started": 1.0}), (1, {"loss": 1.0}), (2, {"loss": 2.0}))
    write(tmp_path, (0, {"run/started": 1.0}), (1, {"loss": 10.0}))
    with RunReader(tmp_path) as run:
        assert run.series("loss").values == [10.0]


def test_what_was_not_a_number_is_nan_and_not_the_last_value(tmp_path: Path) -> None:
    write(tmp_path, (1, {"loss": 1.0}), (2, {"loss": math.nan}))
    with RunReader(tmp_path) as run:
        assert run.series("loss").values == pytest.approx([1.0, math.nan], nan_ok=True)
        assert run.last("loss") == 1.0
        assert run.last("never") is None


def test_names_are_all_metrics_in_order(tmp_path: Path) -> None:
    write(tmp_path, *((step, {"b": 1.0, "a/x": 1.0, "c": 1.0}) for step in range(50)))
    with RunReader(tmp_path) as run:
        assert run.names == ["a/x", "b", "c"]


def test_a_folder_without_numbers_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{ not json")
    with RunReader(tmp_path) as run:
        assert (run.names, run.step, run.epoch, run.started, run.config) == ([], 0, None, None, {})
        assert run.state == "stopped"


def test_reading_leaves_no_files_behind(tmp_path: Path) -> None:
    write(tmp_path, (1, {"loss": 1.0}))
    with RunReader(tmp_path) as run:
        run.series("loss")
    assert [path.name for path in tmp_path.iterdir()] == ["stats.sqlite"]


def test_a_run_can_be_read_while_it_is_written_and_the_reader_cannot_write(tmp_path: Path) -> None:
    sink = SQLiteSink(Run(tmp_path))
    sink.write([Report(1, 0, {"loss": 1.0}, 0.0)])
    with RunReader(tmp_path) as run:
        sink.write([Report(2, 0, {"loss": 2.0}, 0.0)])
        assert run.series("loss").values == [1.0, 2.0]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            run._connection.execute("DELETE FROM numbers")
    sink.close()


STATUS = '[{"status": "STARTED", "message": ""}, {"status": "%s", "message": "out of memory"}]'


@pytest.mark.parametrize(
    ("said", "status", "heartbeat_age", "state"),
    [
        ("run/completed", None, 5, "finished"),
        ("run/failed", None, 5, "failed"),
        ("run/started", None, 5, "running"),
        ("run/started", None, ALIVE_SECONDS + 60, "stopped"),
        ("run/started", None, None, "stopped"),
        ("run/started", "FAILURE", 5, "running"),  # it failed, and was resumed without the status plugin
        (None, "SUCCESS", 5, "finished"),
        (None, "FAILURE", 5, "failed"),
        (None, "RUNNING", 5, "running"),
        (None, None, 5, "running"),
    ],
)
def test_how_a_run_stands(
    tmp_path: Path, said: str | None, status: str | None, heartbeat_age: float | None, state: str
) -> None:
    write(tmp_path, (0, {"run/started": 1.0} if said else {"loss": 1.0}), (1, {said: 1.0} if said else {}))
    if status is not None:
        (tmp_path / "status.json").write_text(STATUS % status)
    if heartbeat_age is not None:
        (tmp_path / "heartbeat").touch()
        then = time.time() - heartbeat_age
        os.utime(tmp_path / "heartbeat", (then, then))
    with RunReader(tmp_path) as run:
        assert run.state == state


def test_runs_are_known_by_their_files(tmp_path: Path) -> None:
    for name, file in (("b", "stats.sqlite"), ("a", "config.json"), ("c", "heartbeat"), ("d", "notes.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert [folder.name for folder in run_folders(tmp_path)] == ["a", "b", "c"]
    assert run_folders(tmp_path / "nowhere") == []
    assert not is_run(tmp_path)


def test_lessons_are_found_in_the_names_of_their_scores() -> None:
    names = ["eval/sums/success_rate", "sums/success_rate", "success_rate", "eval/sums/mean_reward"]
    overall = "eval/success_rate"
    assert lesson_scores([*names, overall]) == {
        "eval": {"sums": "eval/sums/success_rate"},
        "": {"sums": "sums/success_rate"},
    }
    assert list(lesson_scores(["eval/sums-1-2/success_rate", "eval/sums-1/success_rate"])["eval"]) == [
        "sums-1",
        "sums-1-2",
    ]


def test_the_headline_has_the_mean_over_lessons_of_the_widest_evaluation(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {
        "train/loss": 0.5,
        "rollout/mean_reward": 2.0,
        "eval/a/success_rate": 0.5,
        "eval/b/success_rate": 1.0,
        "micro_eval/a/success_rate": 0.0,
        "rate/steps_per_second": 30.0,
    }
    write(tmp_path, (1, numbers))
    with RunReader(tmp_path) as run:
        assert headline(run) == {"loss": 0.5, "reward": 2.0, "success": 0.75, "steps/s": 30.0}
