"""The driver against a pool whose workers and clock are simulated: order, deadlines, deaths, and busy time."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest

from hookline.rollout.errors import RolloutError
from hookline.rollout.sources.driver import TaskDriver, WorkerDeath
from hookline.rollout.sources.pool import Began, Failed, Finished, Lost, Played, PoolEvent, Ready


@dataclass(frozen=True)
class Job:
    number: int

    def __str__(self) -> str:
        return f"job {self.number}"


class ScriptedPool:
    """A pool whose events the test writes down. Waiting for none of them makes time pass."""

    def __init__(self, workers: int = 2) -> None:
        self.workers = workers
        self.now = 0.0
        self.events: deque[PoolEvent] = deque()
        self.queued: list[Job] = []
        self.restarted: list[int] = []
        self.closed = 0

    def start(self) -> None:
        for worker in range(self.workers):
            self.events.append(Ready(worker, self.now, "the yard"))

    def submit(self, task: Job, *, first: bool = False) -> None:
        self.queued.insert(0 if first else len(self.queued), task)

    def begin(self, worker: int, at: float = 0.0) -> Job:
        task = self.queued.pop(0)
        self.events.append(Began(worker, at, task))
        return task

    def finish(self, worker: int, task: Job, at: float = 0.0) -> None:
        self.events.append(Finished(worker, at, task, Played(f"result {task.number}")))

    def wait(self, seconds: float | None) -> PoolEvent | None:
        if self.events:
            return self.events.popleft()
        assert seconds is not None, "nothing will ever happen"
        self.now += seconds
        return None

    def restart(self, worker: int) -> None:
        self.restarted.append(worker)
        self.events.append(Ready(worker, self.now, "the yard"))

    def clear(self) -> None:
        self.queued.clear()

    def publish(self, weights: Any, version: int) -> None: ...

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        self.closed += 1


def driver_of(pool: ScriptedPool, jobs: int, **options: Any) -> TaskDriver:
    driver = TaskDriver(pool, clock=lambda: pool.now, **options)
    driver.start()
    for number in range(jobs):
        driver.submit(Job(number))
    return driver


def test_results_come_in_the_order_of_their_arrival() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 3)
    first, second = pool.begin(0), pool.begin(1)
    pool.finish(1, second)
    third = pool.begin(1)
    pool.finish(1, third)
    pool.finish(0, first)
    assert [driver.next_result().played.result for _ in range(3)] == ["result 1", "result 2", "result 0"]
    assert not driver.in_flight


def test_tasks_that_are_played_first_leave_the_results_of_others_ready() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 3)
    begun = pool.begin(0)

    def play_all() -> None:
        assert [job.number for job in pool.queued] == [-1, -2, 1, 2]
        first = pool.begin(1)
        pool.finish(0, begun)
        pool.finish(0, pool.begin(0))
        pool.finish(1, first)

    submit = pool.submit
    pool.submit = lambda task, *, first=False: (submit(task, first=first), task.number == -1 and play_all())  # type: ignore[method-assign]
    results = driver.play_first([Job(-1), Job(-2)])
    assert [finished.played.result for finished in results] == ["result -1", "result -2"]
    assert driver.next_result().task == begun
    assert set(driver.in_flight) == {1, 2}


def test_after_an_error_the_tasks_that_were_to_be_played_first_are_forgotten() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 1)
    failing, late = Job(-1), Job(-2)
    submit = pool.submit

    def fail(task: Job, *, first: bool = False) -> None:
        submit(task, first=first)
        if task == failing:
            pool.events.append(Failed(0, 0.0, pool.begin(0), ValueError("no such door")))

    pool.submit = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no such door"):
        driver.play_first([failing, late])
    pool.finish(1, pool.begin(1))
    pool.finish(1, pool.begin(1))
    assert driver.next_result().task == Job(0)
    assert not driver.ready, "the result of the other one is ignored"


def test_after_an_error_the_tasks_that_were_played_first_are_forgotten_though_they_are_ready() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 1)
    begun = pool.begin(0)
    submit = pool.submit

    def play_all(task: Job, *, first: bool = False) -> None:
        submit(task, first=first)
        if task == Job(-1):
            pool.finish(1, pool.begin(1))
            pool.finish(0, begun)
            pool.events.append(Failed(0, 0.0, pool.begin(0), ValueError("no such door")))

    pool.submit = play_all  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no such door"):
        driver.play_first([Job(-1), Job(-2)])
    assert [finished.task for finished in driver.ready] == [begun]


def test_the_task_of_a_lost_worker_is_played_again_before_all_others() -> None:
    announced: list[Any] = []
    pool = ScriptedPool()
    driver = driver_of(pool, 3, on_lost=announced.append, on_restarted=announced.append)
    pool.begin(0)
    pool.events.append(Lost(0, 1.0, "killed by SIGKILL"))
    driver.handle_events()
    assert pool.restarted == [0]
    assert [job.number for job in pool.queued] == [0, 1, 2]
    assert announced == [WorkerDeath(0, "killed by SIGKILL", 0), 0]
    pool.finish(1, pool.begin(1))
    assert driver.next_result().task == Job(0)


def test_a_worker_that_is_late_is_replaced_by_the_drivers_clock(caplog: pytest.LogCaptureFixture) -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 2, deadline_seconds=10.0)
    late, quick = pool.begin(0, at=0.0), pool.begin(1, at=3.0)
    pool.finish(1, quick, at=4.0)
    assert driver.next_result().task == quick
    pool.finish(0, late, at=9.0)
    pool.now = 100.0  # the trainer was busy for long, and the result has waited
    assert driver.next_result().task == late
    assert not pool.restarted
    driver.submit(Job(2))
    pool.begin(0, at=100.0)
    with caplog.at_level(logging.WARNING), pytest.raises(AssertionError, match="nothing will ever happen"):
        driver.next_result()
    assert pool.now == 110.0
    assert pool.restarted == [0]
    assert driver.deaths == [WorkerDeath(0, "no answer in 10 s", 2)]
    assert "rollout worker 0 died (no answer in 10 s) while playing job 2: replaced" in caplog.text


def test_a_task_that_kills_three_workers_is_given_up_with_an_error_that_says_how_to_go_on() -> None:
    pool = ScriptedPool(1)
    driver = driver_of(pool, 2)
    for _ in range(2):
        pool.begin(0)
        pool.events.append(Lost(0, 0.0, "exit status 9"))
        driver.handle_events()
    pool.begin(0)
    pool.events.append(Lost(0, 0.0, "exit status 9"))
    with pytest.raises(
        RolloutError, match="the yard, job 0: 3 rollout workers died there, the last with exit status 9; see their out"
    ):
        driver.next_result()
    late = driver_of(ScriptedPool(1), 1, deadline_seconds=2.0, advice="give it more time")
    for _ in range(2):
        late.pool.begin(0, at=late.pool.now)  # type: ignore[attr-defined]
        with pytest.raises(AssertionError, match="nothing will ever happen"):
            late.next_result()
    late.pool.begin(0, at=late.pool.now)  # type: ignore[attr-defined]
    with pytest.raises(RolloutError, match="the last with no answer in 2 s; give it more time"):
        late.next_result()


def test_deaths_are_not_held_against_a_task_or_a_start_after_one_that_ended_well() -> None:
    pool = ScriptedPool(1)
    driver = driver_of(pool, 0)
    for _ in range(2):
        driver.submit(Job(-1))
        for _ in range(2):
            pool.begin(0)
            pool.events.append(Lost(0, 0.0, "the node is gone"))
            driver.handle_events()
        pool.finish(0, pool.begin(0))
        assert driver.next_result().task == Job(-1)
    pool.restart = lambda worker: None  # type: ignore[method-assign]
    for _ in range(3):
        lost = Lost(0, 0.0, "the node is gone")
        pool.events += [lost, lost, Ready(0, 0.0, "the yard")]
        driver.handle_events()
    assert len(driver.deaths) == 4 + 6


def test_a_pool_that_refuses_to_restart_a_worker_hides_neither_its_loss_nor_the_error_of_its_start() -> None:
    class Final(ScriptedPool):
        def restart(self, worker: int) -> None:
            raise RolloutError("there is no other one")

    announced: list[Any] = []
    pool = Final(1)
    driver = driver_of(pool, 1, on_lost=announced.append)
    pool.begin(0)
    pool.events.append(Lost(0, 1.0, "killed by SIGKILL"))
    with pytest.raises(RolloutError, match="there is no other one"):
        driver.next_result()
    assert announced == driver.deaths == [WorkerDeath(0, "killed by SIGKILL", 0)]
    pool = Final(1)
    driver = driver_of(pool, 1)
    pool.events.append(Failed(0, 0.0, None, ImportError("no simulator here")))
    with pytest.raises(ImportError, match="no simulator here"):
        driver.next_result()


def test_a_worker_that_never_starts_is_given_up() -> None:
    class Stillborn(ScriptedPool):
        def start(self) -> None:
            self.events.append(Lost(0, 0.0, "exit status 1"))

        def restart(self, worker: int) -> None:
            self.start()

    with pytest.raises(RolloutError, match="the start of a worker: 3 rollout workers died there"):
        driver_of(Stillborn(1), 1).next_result()


def test_an_error_of_a_task_is_raised_and_one_of_a_forgotten_task_is_not() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 2)
    first, second = pool.begin(0), pool.begin(1)
    pool.events.append(Failed(0, 0.0, first, ValueError("no such door")))
    with pytest.raises(ValueError, match="no such door"):
        driver.next_result()
    driver.forget()
    driver.submit(Job(7))
    pool.events.append(Failed(1, 0.0, second, ValueError("too late")))
    pool.finish(0, pool.begin(0))
    assert driver.next_result().task == Job(7)


def test_a_failed_start_is_raised_and_the_worker_is_started_again() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 1)
    pool.events.append(Failed(1, 0.0, None, ImportError("no simulator here")))
    with pytest.raises(ImportError, match="no simulator here"):
        driver.next_result()
    assert pool.restarted == [1]


def test_busy_time_is_summed_over_workers_and_counts_tasks_alone() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 3)
    first = pool.begin(0, at=1.0)
    second = pool.begin(1, at=2.0)
    pool.finish(0, first, at=5.0)
    driver.handle_events()
    pool.now = 6.0
    assert driver.busy_seconds() == 4.0 + 4.0
    pool.finish(1, second, at=8.0)
    driver.handle_events()
    pool.now = 20.0
    assert driver.busy_seconds() == 4.0 + 6.0


def test_a_closed_driver_forgets_everything_and_can_start_again() -> None:
    pool = ScriptedPool()
    driver = driver_of(pool, 2)
    pool.begin(0)
    driver.handle_events()
    driver.close()
    assert pool.closed == 1
    assert not driver.in_flight
    assert not pool.queued
    driver.start()
    driver.submit(Job(5))
    pool.finish(0, pool.begin(0))
    assert driver.next_result().task == Job(5)
