"""Heartbeats are due at a fixed interval from the start of a run to its end, even if the training thread is stuck."""

from __future__ import annotations

import threading
from typing import Any

from hookline_status.heartbeat import Heartbeat


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Run:
    """A heartbeat with an interval of ten seconds, on a clock of the test's."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.heartbeat = Heartbeat("test", 10.0, self.clock)

    def due(self, seconds: float) -> dict[str, dict[str, Any]]:
        self.clock.seconds = seconds
        return dict(self.heartbeat.due())


def test_there_is_no_heartbeat_before_anything_has_happened() -> None:
    assert Run().due(100.0) == {}


def test_a_run_that_gets_on_beats_once_in_an_interval() -> None:
    run, beats = Run(), []
    for second in range(30):
        run.heartbeat.mark_progress("training")
        beats += [second] if run.due(float(second)) else []
    assert beats == [0, 10, 20]


def test_a_call_that_lasts_beats_all_the_same_and_says_for_how_long_nothing_has_happened() -> None:
    run = Run()
    run.heartbeat.mark_progress("validation", {"batch_index": 3})
    told = [run.due(float(second)).get("validation") for second in range(26)]
    assert [(second, data) for second, data in enumerate(told) if data is not None] == [
        (0, {"batch_index": 3, "seconds_since_progress": 0.0}),
        (10, {"batch_index": 3, "seconds_since_progress": 10.0}),
        (20, {"batch_index": 3, "seconds_since_progress": 20.0}),
    ]


def test_a_phase_beats_for_itself_with_its_latest_report() -> None:
    run = Run()
    run.heartbeat.mark_progress("training", {"current_step": 4})
    assert run.due(0.0) == {"training": {"current_step": 4, "seconds_since_progress": 0.0}}
    run.heartbeat.mark_progress("validation", {"batch_index": 0})
    run.heartbeat.mark_progress("validation", {"batch_index": 1})
    assert list(run.due(1.0)) == ["validation"], "the first does not wait for an interval"
    run.heartbeat.mark_progress("training")
    assert run.due(2.0) == {}
    assert list(run.due(11.0)) == ["training"], "the validation is over"


def test_a_phase_that_was_over_before_the_first_look_beats_once() -> None:
    run = Run()
    run.heartbeat.mark_progress("validation", {"val_avg_loss": 0.5})
    run.heartbeat.leave_phase()
    assert run.due(0.0) == {"validation": {"val_avg_loss": 0.5, "seconds_since_progress": 0.0}}
    assert run.due(100.0) == {}


def test_nothing_beats_after_the_end() -> None:
    run = Run()
    run.heartbeat.mark_progress("training")
    run.heartbeat.pause()
    assert run.due(100.0) == {}
    run.heartbeat.mark_progress("training")
    assert list(run.due(100.0)) == ["training"], "another run may begin"


def test_a_training_thread_that_has_ended_has_no_heartbeat() -> None:
    run = Run()
    thread = threading.Thread(target=run.heartbeat.mark_progress, args=("training",))
    thread.start()
    thread.join()
    assert run.due(100.0) == {}
