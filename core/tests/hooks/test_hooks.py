"""Hooks in the class style: when they run, what they are given, and what becomes of their results."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from hookline.errors import HooklineError, OrderError
from hookline.hooks import (
    CheckpointHook,
    CompositeHook,
    EvaluationHook,
    Hook,
    HookContext,
    HookManager,
    MetricsHook,
    PeriodicHook,
)
from hookline.plugin_manager import PluginManager
from hookline.rollout import CurriculumConfig, RolloutWorker, RolloutWorkerConfig
from hookline_hookspecs import hookimpl


class Ticking(PeriodicHook):
    def __init__(self, frequency: int, start_step: int = 0) -> None:
        super().__init__(frequency, start_step)
        self.steps: list[int] = []

    def run(self, context: HookContext) -> None:
        self.steps.append(context.step)


class Calling(Hook):
    """Runs at every step, and does as it is told."""

    def __init__(self, function: Callable[[HookContext], dict[str, Any] | None]) -> None:
        self.function = function

    def should_run(self, context: HookContext) -> bool:
        return True

    def run(self, context: HookContext) -> dict[str, Any] | None:
        return self.function(context)


def run_at(hook: Hook, steps: list[int]) -> None:
    manager = HookManager()
    manager.register_hook(hook)
    for step in steps:
        manager.run_hooks(HookContext(step=step))


@pytest.fixture
def worker() -> RolloutWorker:
    return RolloutWorker(RolloutWorkerConfig(CurriculumConfig(eval_frequency=None, micro_eval_frequency=None)))


@pytest.mark.parametrize(("frequency", "start_step"), [(1, 0), (5, 0), (10, 20), (7, 3)])
def test_on_contiguous_steps_a_periodic_hook_runs_at_the_multiples_after_its_start(
    frequency: int, start_step: int
) -> None:
    hook = Ticking(frequency, start_step)
    run_at(hook, list(range(60)))
    assert hook.steps == [step for step in range(60) if step > start_step and step % frequency == 0]


def test_when_steps_are_passed_over_a_periodic_hook_runs_once_for_them() -> None:
    hook = Ticking(10)
    run_at(hook, [3, 9, 27, 28, 30, 71, 72])
    assert hook.steps == [27, 30, 71]


def test_a_clock_that_goes_back_is_no_step_that_was_passed_over() -> None:
    hook = Ticking(10)
    run_at(hook, [20, 5, 6, 10])
    assert hook.steps == [20, 10]


def test_a_periodic_hook_gives_one_answer_for_one_step() -> None:
    hook = Ticking(10)
    assert [hook.should_run(HookContext(step=step)) for step in (10, 10, 11, 11)] == [True, True, False, False]


def test_a_frequency_that_makes_no_sense_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="whole number of at least 1, got 0"):
        Ticking(0)


def test_every_hook_has_a_random_key_of_its_own_that_one_seed_gives_again() -> None:
    def keys_of_a_run() -> list[tuple[int, ...]]:
        keys: list[tuple[int, ...]] = []

        def note(context: HookContext) -> None:
            keys.append(tuple(jax.random.key_data(context.rng).tolist()))

        curriculum = CurriculumConfig(eval_frequency=None, micro_eval_frequency=None)
        worker = RolloutWorker(RolloutWorkerConfig(curriculum))
        worker.register_hook(Calling(note))
        worker.register_hook(Calling(note))
        worker.register_hook(CompositeHook([Calling(note), Calling(note)]))
        worker.run(steps=2)
        return keys

    keys = keys_of_a_run()
    assert len(set(keys)) == len(keys) == 8
    assert keys_of_a_run() == keys


def test_results_of_all_hooks_are_merged_by_name() -> None:
    manager = HookManager()
    manager.register_hook(Calling(lambda context: {"a": 1}))
    manager.register_hook(Calling(lambda context: {"b": context.step}))
    manager.register_hook(Calling(lambda context: None))
    assert manager.run_hooks(HookContext(step=7)) == {"a": 1, "b": 7}


def test_hooks_run_in_the_order_of_their_registration(worker: RolloutWorker) -> None:
    order: list[str] = []
    for name in "abc":
        worker.register_hook(Calling(lambda context, name=name: order.append(name)))
    worker.run(steps=1)
    assert order == ["a", "b", "c"]


def test_two_results_of_one_name_are_reported_and_not_overwritten(caplog: pytest.LogCaptureFixture) -> None:
    manager = HookManager()
    for value in (1, 2):
        manager.register_hook(Calling(lambda context, value=value: {"loss": value}))
    context = HookContext(step=3)
    results = manager.run_hooks(context)
    (fault,) = manager.plugins.faults.faults.values()
    assert "another hook already returned 'loss' at step 3" in fault.error
    assert results == {"loss": 1}
    assert any("already returned 'loss' at step 3" in record.message for record in caplog.records)
    assert not manager.plugins.faults.quarantined


def test_a_composite_reports_two_results_of_one_name_too(caplog: pytest.LogCaptureFixture) -> None:
    composite = CompositeHook([Calling(lambda context: {"loss": 1}), Calling(lambda context: {"loss": 2})])
    assert composite.run(HookContext(step=3)) == {"loss": 1}
    assert "another hook already returned 'loss' at step 3" in caplog.text


def test_a_composite_runs_all_its_hooks_though_one_fails() -> None:
    ran = []

    def fail(context: HookContext) -> None:
        raise ValueError("no")

    composite = CompositeHook([Calling(fail), Calling(lambda context: ran.append(context.step))])
    with pytest.raises(ValueError, match="no"):
        composite.run(HookContext(step=1))
    assert ran == [1]
    with pytest.raises(ExceptionGroup, match="2 hooks failed at step 1"):
        CompositeHook([Calling(fail), Calling(fail)]).run(HookContext(step=1))


def test_a_hook_that_fails_is_reported_and_the_run_goes_on(worker: RolloutWorker) -> None:
    def fail(context: HookContext) -> None:
        raise ValueError("no disk")

    after: list[int] = []
    worker.register_hook(Calling(fail))
    worker.register_hook(Calling(lambda context: after.append(context.step)))
    worker.run(steps=4)
    assert after == [1, 2, 3, 4]
    assert worker.plugins.faults.failures_of("Calling") == 3
    assert "Calling" in worker.plugins.faults.quarantined


@pytest.mark.parametrize("results", [5, [("runs", 1)], {1: 2}], ids=str)
def test_results_that_are_not_by_name_are_a_failure_that_says_so(worker: RolloutWorker, results: Any) -> None:
    worker.register_hook(Calling(lambda context: results))
    worker.run(steps=1)
    (fault,) = worker.plugins.faults.faults.values()
    assert str(fault.error) == f"TypeError: run returned {results}; it must be None or a dictionary by name"


def test_a_critical_hook_that_fails_stops_the_run(worker: RolloutWorker) -> None:
    class Guard(Calling):
        critical = True

    def fail(context: HookContext) -> None:
        raise ValueError("no disk")

    worker.register_hook(Guard(fail))
    with pytest.raises(ValueError, match="no disk"):
        worker.run(steps=1)


def test_hooks_are_plugins_of_the_workers_manager(worker: RolloutWorker) -> None:
    hook = Ticking(1)
    worker.register_hook(hook)
    assert worker.plugins.has_plugin("Ticking")
    worker.clear_hooks()
    assert not worker.plugins.has_plugin("Ticking")


def test_running_hooks_by_hand_calls_no_other_plugin() -> None:
    class Listener:
        heard = 0

        @hookimpl
        def on_rollout_end(self) -> None:
            self.heard += 1

    manager = HookManager()
    listener, hook = Listener(), Ticking(1)
    manager.plugins.register(listener)
    manager.register_hook(hook)
    manager.run_hooks(HookContext(step=1))
    assert (listener.heard, hook.steps) == (0, [1])


def test_a_hook_may_remove_itself_while_it_runs(worker: RolloutWorker) -> None:
    ran: list[int] = []

    def once(context: HookContext) -> None:
        ran.append(context.step)
        context.worker.unregister_hook(hook)

    hook = Calling(once)
    worker.register_hook(hook)
    worker.run(steps=3)
    assert ran == [1]


def test_what_is_no_hook_and_a_hook_twice_are_errors() -> None:
    manager = HookManager()
    with pytest.raises(HooklineError, match=r"is not a hook: it needs should_run\(context\) and run\(context\)"):
        manager.register_hook(SimpleNamespace())
    hook = Ticking(1)
    manager.register_hook(hook)
    with pytest.raises(HooklineError, match="is registered already"):
        manager.register_hook(hook)


def test_a_metrics_hook_without_a_function_logs_the_numbers_of_the_rollout(worker: RolloutWorker) -> None:
    worker.register_hook(MetricsHook(frequency=1))
    worker.run(steps=1)
    assert worker.tracker.latest["worker/steps"] == 1024
    assert worker.tracker.latest["worker/weights_version"] == 0


def test_a_checkpoint_hook_writes_a_state_that_a_worker_can_go_on_from(worker: RolloutWorker, tmp_path: Path) -> None:
    worker.register_hook(CheckpointHook(frequency=2, directory=tmp_path / "states"))
    worker.run(steps=2)
    (file,) = (tmp_path / "states").iterdir()
    assert file.name == "worker-0-step-000002.json"
    curriculum = CurriculumConfig(eval_frequency=None, micro_eval_frequency=None)
    resumed = RolloutWorker(RolloutWorkerConfig(curriculum))
    resumed.load_state_dict(json.loads(file.read_text()))
    assert (resumed.rollout().arrays["obs"] == worker.rollout().arrays["obs"]).all()


def test_debug_logging_is_off_unless_asked_for(worker: RolloutWorker, caplog: pytest.LogCaptureFixture) -> None:
    worker.register_hook(Ticking(1))
    worker.run(steps=1)
    assert not [record for record in caplog.records if record.levelno == logging.DEBUG and "hookline" in record.name]


# -- options of plugins ------------------------------------------------------------------------------------------------


def test_a_schedule_on_run_says_when_a_hook_is_asked(worker: RolloutWorker) -> None:
    class Second(Calling):
        @hookimpl(every=2)
        def run(self, context: HookContext) -> dict[str, Any] | None:
            return self.function(context)

    steps: list[int] = []
    worker.register_hook(Second(lambda context: steps.append(context.step)))
    worker.run(steps=5)
    assert steps == [2, 4]


def test_the_order_that_hooks_ask_for_is_kept(worker: RolloutWorker) -> None:
    class Plain(Calling): ...

    class Early(Calling):
        before = ("Plain",)

    class First(Calling):
        @hookimpl(tryfirst=True)
        def run(self, context: HookContext) -> dict[str, Any] | None:
            return self.function(context)

    class Last(Calling):
        @hookimpl(trylast=True)
        def run(self, context: HookContext) -> dict[str, Any] | None:
            return self.function(context)

    order: list[str] = []
    for cls in (Last, Plain, Early, First):
        worker.register_hook(cls(lambda context, cls=cls: order.append(cls.__name__)))
    worker.run(steps=1)
    assert order == ["First", "Early", "Plain", "Last"]


def test_a_hook_that_requires_another_is_an_error_without_it(worker: RolloutWorker) -> None:
    class Dependent(Calling):
        requires = ("Ticking",)

    dependent, ticking = Dependent(lambda context: None), Ticking(1)
    with pytest.raises(OrderError, match="plugin 'Dependent' requires 'Ticking', which is not registered"):
        worker.register_hook(dependent)
    assert worker.get_hooks() == []
    worker.register_hook(ticking)
    worker.register_hook(dependent)
    with pytest.raises(OrderError, match="cannot be unregistered: 'Dependent' requires it"):
        worker.unregister_hook(ticking)
    assert worker.get_hooks() == [ticking, dependent]
    worker.clear_hooks()
    assert worker.get_hooks() == []


def test_a_hook_may_implement_other_events_too(worker: RolloutWorker) -> None:
    class Watchful(Ticking):
        @hookimpl
        def on_worker_stop(self, context: HookContext) -> None:
            self.steps.append(-context.step)

    hook = Watchful(1)
    worker.register_hook(hook)
    worker.run(steps=2)
    assert hook.steps == [1, 2, -2]


class Fetching(Hook):
    """Waits for something without keeping the training thread."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def should_run(self, context: HookContext) -> bool:
        return context.step % 2 == 0

    async def run(self, context: HookContext) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.threads.append(threading.current_thread().name)
        return {"fetched": context.step}


def test_an_async_hook_is_awaited_off_the_training_thread_and_its_results_are_merged(worker: RolloutWorker) -> None:
    contexts: list[HookContext] = []

    class Listener:
        @hookimpl
        def on_rollout_end(self, context: HookContext) -> None:
            contexts.append(context)

    worker.plugins.register(Listener())
    hook = Fetching()
    worker.register_hook(hook)
    worker.register_hook(Calling(lambda context: {"called": context.step}))
    worker.run(steps=2)
    worker.plugins.close()
    assert not worker.plugins.faults
    assert [context.metadata["hook_results"] for context in contexts] == [{"called": 1}, {"called": 2, "fetched": 2}]
    assert hook.threads == ["hookline-Fetching"]


def test_running_hooks_by_hand_waits_for_async_ones() -> None:
    with PluginManager() as plugins:
        manager = HookManager(plugins)
        manager.register_hook(Fetching())
        assert manager.run_hooks(HookContext(step=4)) == {"fetched": 4}
        assert manager.run_hooks(HookContext(step=5)) == {}


def test_an_async_hook_that_fails_is_reported(worker: RolloutWorker) -> None:
    class Broken(Fetching):
        async def run(self, context: HookContext) -> dict[str, Any]:
            raise ValueError("no answer")

    worker.register_hook(Broken())
    worker.run(steps=2)
    worker.plugins.close()
    assert worker.plugins.faults.failures_of("Broken") == 1


# -- composites --------------------------------------------------------------------------------------------------------


class Failing(Hook):
    def should_run(self, context: HookContext) -> bool:
        return True

    def run(self, context: HookContext) -> None:
        raise ValueError("no")


def test_the_hooks_of_a_composite_fail_on_their_own(worker: RolloutWorker) -> None:
    class Guard(Ticking):
        critical = True

    ticking, guard, inner = Ticking(1), Guard(1), Ticking(2)
    composite = CompositeHook([Failing(), ticking, guard, CompositeHook([inner])])
    worker.register_hook(composite)
    worker.run(steps=5)
    assert ticking.steps == guard.steps == [1, 2, 3, 4, 5]
    assert inner.steps == [2, 4]
    assert list(worker.plugins.faults.quarantined) == ["Failing"]


def test_a_composite_is_one_hook_to_its_user(worker: RolloutWorker) -> None:
    ticking = Ticking(1)
    composite = CompositeHook([ticking, CompositeHook([Ticking(1)])])
    worker.register_hook(composite)
    assert worker.get_hooks() == [composite]
    with pytest.raises(HooklineError, match="is registered already"):
        worker.register_hook(ticking)
    assert worker.unregister_hook(composite)
    worker.run(steps=1)
    assert ticking.steps == []
    assert worker.get_hooks() == []


def test_a_composite_with_something_in_it_that_is_no_hook_registers_nothing(worker: RolloutWorker) -> None:
    hook = Ticking(1)
    for inner, expected in ((SimpleNamespace(), "is not a hook"), (hook, "twice")):
        with pytest.raises(HooklineError, match=expected):
            worker.register_hook(CompositeHook([hook, inner]))
    worker.run(steps=1)
    assert hook.steps == []


def test_a_composite_of_a_class_of_its_own_is_asked_as_one(worker: RolloutWorker) -> None:
    class Late(CompositeHook):
        def should_run(self, context: HookContext) -> bool:
            return context.step > 2 and super().should_run(context)

    hook = Ticking(1)
    worker.register_hook(Late([hook]))
    worker.run(steps=4)
    assert hook.steps == [3, 4]


def test_a_composite_of_a_class_of_its_own_is_critical_if_one_of_its_hooks_is(worker: RolloutWorker) -> None:
    class Guard(Failing):
        critical = True

    class Own(CompositeHook):
        def run(self, context: HookContext) -> dict[str, Any] | None:
            return super().run(context)

    worker.register_hook(Own([Ticking(1), Guard()]))
    with pytest.raises(ValueError, match="no"):
        worker.run(steps=1)


def test_running_the_hooks_of_a_composite_by_hand_merges_their_results() -> None:
    manager = HookManager()
    manager.register_hook(CompositeHook([Calling(lambda context: {"a": 1}), Calling(lambda context: {"b": 2})]))
    assert manager.run_hooks(HookContext(step=1)) == {"a": 1, "b": 2}


# -- periodic hooks ----------------------------------------------------------------------------------------------------


def test_a_periodic_hook_that_was_disabled_goes_on_at_the_next_multiple() -> None:
    class ConfigurableHook(Ticking):
        enabled = True

        def should_run(self, context: HookContext) -> bool:
            return self.enabled and super().should_run(context)

    hook = ConfigurableHook(10)
    manager = HookManager()
    manager.register_hook(hook)
    for step in range(1, 60):
        hook.enabled = not 15 < step < 34
        manager.run_hooks(HookContext(step=step))
    assert hook.steps == [10, 40, 50]


def test_a_periodic_hook_leaves_all_names_but_its_own_to_subclasses() -> None:
    class Stepping(Ticking):
        def __init__(self) -> None:
            super().__init__(5)
            self._step = self._step_before = self._previous_step = 1000

    hook = Stepping()
    assert {name for name in vars(Ticking(5)) if name.startswith("_")} == set()
    run_at(hook, list(range(12)))
    assert hook.steps == [5, 10]


# -- evaluations -------------------------------------------------------------------------------------------------------


def test_collisions_of_two_evaluations_are_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    worker = RolloutWorker(RolloutWorkerConfig())
    worker._evaluate_lesson = lambda *_: {"mean_reward": 1.0, "success_rate": 0.0}
    worker.register_hook(EvaluationHook(frequency=5))
    worker.register_hook(EvaluationHook(frequency=10))
    worker.run(steps=40)
    said = [record.message for record in caplog.records if "another hook already" in record.message]
    assert len(said) == 1
    assert "returned 'eval/cartpole/mean_reward' and 1 more at step 10" in said[0]
    (fault,) = worker.plugins.faults.faults.values()
    assert fault.count == 4


def test_what_is_put_in_the_place_of_evaluate_lesson_is_what_evaluations_give() -> None:
    worker = RolloutWorker(RolloutWorkerConfig())

    def mock_evaluate_lesson(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"mocked": True}

    original_method = worker._evaluate_lesson
    worker._evaluate_lesson = mock_evaluate_lesson
    try:
        worker.run(steps=10)
        assert worker.tracker.latest["micro_eval/cartpole/mocked"] is True
        assert worker.evaluate() == {"eval/cartpole/mocked": True}
    finally:
        worker._evaluate_lesson = original_method
    assert worker.evaluate(n_examples=2)["eval/cartpole/episodes"] == 2
