"""Heartbeats follow progress: they go on through long validations and evaluations, and stop when a run hangs."""

from __future__ import annotations

import threading
import time

from hookline_status.pulse import Pulse


def pulse() -> Pulse:
    return Pulse("test", {"training": 10.0, "validation": 10.0})


def phases(pulse: Pulse, now: float) -> list[str]:
    return [phase for phase, _ in pulse.due(now)]


def test_there_is_no_heartbeat_before_anything_has_happened() -> None:
    assert phases(pulse(), 100.0) == []


def test_progress_makes_a_heartbeat_at_most_once_in_an_interval() -> None:
    run = pulse()
    seen = []
    for second in range(30):
        run.move("training")
        seen += [second] if phases(run, float(second)) else []
    assert seen == [0, 10, 20]


def test_a_run_that_hangs_has_no_heartbeat_until_it_goes_on() -> None:
    run = pulse()
    run.move("training")
    assert phases(run, 0.0) == ["training"]
    assert [phases(run, float(second)) for second in range(1, 1000)] == [[]] * 999
    run.move("training")
    assert phases(run, 1000.0) == ["training"]


def test_a_validation_beats_for_itself_with_its_latest_report() -> None:
    run = pulse()
    run.move("training", {"current_step": 4})
    assert list(run.due(0.0)) == [("training", {"current_step": 4})]
    run.move("validation", {"batch_index": 0})
    run.move("validation", {"batch_index": 1})
    assert list(run.due(1.0)) == [("validation", {"batch_index": 1})], "the first does not wait for an interval"
    run.move("validation", {"batch_index": 2})
    assert list(run.due(2.0)) == []
    assert list(run.due(11.0)) == [("validation", {"batch_index": 2})]


def test_nothing_that_moved_before_the_end_beats_after_it() -> None:
    run = pulse()
    run.move("training")
    run.rest()
    assert phases(run, 100.0) == []
    run.move("training")
    assert phases(run, 100.0) == ["training"], "another run may begin"


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def test_an_evaluation_that_computes_is_alive_though_no_event_comes() -> None:
    run = pulse()
    run.begin_evaluation()
    assert phases(run, 0.0) == ["validation"]
    for interval in range(1, 4):
        compute(0.01)
        assert phases(run, 10.0 * interval) == ["validation"]
    run.end_evaluation()
    assert phases(run, 40.0) == ["validation"]
    compute(0.01)
    assert phases(run, 50.0) == [], "what is computed outside of an evaluation says nothing"


def test_an_evaluation_that_hangs_is_not() -> None:
    run = pulse()
    begun, released = threading.Event(), threading.Event()

    def evaluate() -> None:
        run.begin_evaluation()
        begun.set()
        released.wait(60)

    thread = threading.Thread(target=evaluate)
    thread.start()
    begun.wait(60)
    time.sleep(0.05)
    assert phases(run, 0.0) == ["validation"]
    assert [phases(run, 10.0 * interval) for interval in range(1, 5)] == [[]] * 4
    released.set()
    thread.join()
    assert phases(run, 100.0) == [], "the thread is gone, and its clock with it"
