"""Schedules on implementations, with clocks that jump, stand still and go back."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import PluginManager
from hookline.plugin_manager import PluginError
from hookline.plugin_manager.events import Event
from hookline.plugin_manager.manager import Overrides
from hookline_hookspecs import At, Cycle, Every, HookContext, Rollout, Schedule, TrainerState, hookimpl


class Watcher:
    """Notes the steps at which it is called."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl(every=10)
    def post_training_step(self, state: TrainerState) -> None:
        self.seen.append(state.step)


class EveryStep:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def post_training_step(self, state: TrainerState) -> None:
        self.seen.append(state.step)


def emit_steps(manager: PluginManager, steps: Any) -> None:
    for step in steps:
        manager.emit.post_training_step(state=TrainerState(step=step), report_data={})


def test_a_scheduled_implementation_runs_when_due_and_others_always(hookline_manager: PluginManager) -> None:
    watcher, always = Watcher(), EveryStep()
    hookline_manager.register(watcher)
    hookline_manager.register(always)
    emit_steps(hookline_manager, range(31))
    assert watcher.seen == [10, 20, 30]
    assert always.seen == list(range(31))


def test_a_clock_that_jumps_over_a_multiple_makes_it_due_once(hookline_manager: PluginManager) -> None:
    watcher = Watcher()
    hookline_manager.register(watcher)
    emit_steps(hookline_manager, (3, 7, 12, 19, 45, 46, 50))
    assert watcher.seen == [12, 45, 50]


def test_a_clock_that_stands_still_is_due_once(hookline_manager: PluginManager) -> None:
    watcher = Watcher()
    hookline_manager.register(watcher)
    emit_steps(hookline_manager, (10, 10, 10, 11))
    assert watcher.seen == [10]


def test_a_clock_that_goes_back_starts_anew(hookline_manager: PluginManager) -> None:
    watcher = Watcher()
    hookline_manager.register(watcher)
    emit_steps(hookline_manager, (98, 100, 40, 45, 51))
    assert watcher.seen == [98, 100, 40, 51]


def test_a_resumed_run_is_not_due_for_what_was_done_before(hookline_manager: PluginManager) -> None:
    watcher = Watcher()
    hookline_manager.register(watcher)
    hookline_manager.set_clocks(step=1005, epoch=3)
    emit_steps(hookline_manager, (1006, 1009, 1010))
    assert watcher.seen == [1010]


def test_a_second_run_with_the_same_manager_starts_its_clocks_anew(hookline_manager: PluginManager) -> None:
    watcher = Watcher()
    hookline_manager.register(watcher)
    emit_steps(hookline_manager, (5, 10))
    hookline_manager.set_clocks(epoch=0)
    emit_steps(hookline_manager, (10,))
    assert watcher.seen == [10]
    hookline_manager.set_clocks(step=0)
    emit_steps(hookline_manager, (10,))
    assert watcher.seen == [10, 10]


@given(st.lists(st.integers(1, 25), max_size=40))
def test_whatever_the_jumps_it_is_due_exactly_when_a_multiple_was_crossed(jumps: list[int]) -> None:
    manager, watcher = PluginManager(), Watcher()
    manager.register(watcher)
    steps = [sum(jumps[: i + 1]) for i in range(len(jumps))]
    emit_steps(manager, steps)
    previous = [-1, *steps]
    crossed = [now for before, now in zip(previous, steps, strict=False) if now // 10 > max(before, 0) // 10]
    assert watcher.seen == crossed


def test_combined_schedules_are_due_on_the_ticks_they_share_or_either_has(hookline_manager: PluginManager) -> None:
    seen: dict[str, list[int]] = {"either": [], "both": [], "cycle": []}

    class Combined:
        @hookimpl(schedule=Every(4) | At([1]), specname="on_epoch_end")
        def either(self, state):
            seen["either"].append(state.epoch)

        @hookimpl(schedule=Every(4) & Every(6), specname="on_epoch_start")
        def both(self, state):
            seen["both"].append(state.epoch)

        @hookimpl(schedule=Cycle(5, active=[0, 3]), specname="on_train_phase_end")
        def cycle(self, state):
            seen["cycle"].append(state.epoch)

    hookline_manager.register(Combined())
    for epoch in range(13):
        state = TrainerState(epoch=epoch)
        hookline_manager.emit.on_epoch_start(state=state)
        hookline_manager.emit.on_train_phase_end(state=state)
        hookline_manager.emit.on_epoch_end(state=state)
    assert seen == {"either": [0, 3, 7, 11], "both": [12], "cycle": [2, 4, 7, 9, 12]}


def test_rollout_events_count_by_the_workers_step_and_reports_by_their_own(hookline_manager: PluginManager) -> None:
    seen = []

    class Both:
        @hookimpl(every=3)
        def on_rollout_end(self, context):
            seen.append(("rollout", context.step))

        @hookimpl(every=2)
        def log_metrics(self, step):
            seen.append(("report", step))

    hookline_manager.register(Both())
    for step in range(4):
        hookline_manager.emit.on_rollout_end(context=HookContext(step=step), rollout=Rollout())
        hookline_manager.emit.log_metrics(report_data={}, step=step)
    assert seen == [("report", 2), ("rollout", 3)]


def test_a_scheduled_wrapper_takes_part_only_when_due(hookline_manager: PluginManager) -> None:
    log = []

    class Around:
        @hookimpl(every=2, wrapper=True)
        def on_epoch_end(self, state):
            log.append(f"before {state.epoch}")
            yield
            log.append(f"after {state.epoch}")

    class Inside:
        @hookimpl
        def on_epoch_end(self, state):
            log.append(f"inside {state.epoch}")

    hookline_manager.register(Around())
    hookline_manager.register(Inside())
    for epoch in range(3):
        hookline_manager.emit.on_epoch_end(state=TrainerState(epoch=epoch))
    assert log == ["inside 0", "before 1", "inside 1", "after 1", "inside 2"]


def test_config_can_replace_the_schedules_of_a_plugin(hookline_manager: PluginManager) -> None:
    watcher = Watcher()
    hookline_manager.register(watcher, overrides=Overrides(schedule=Every(25)))
    emit_steps(hookline_manager, range(60))
    assert watcher.seen == [25, 50]


def test_config_can_give_a_schedule_to_one_event(hookline_manager: PluginManager) -> None:
    always = EveryStep()
    hookline_manager.register(always, overrides=Overrides(event_schedules={"post_training_step": At([7])}))
    emit_steps(hookline_manager, range(10))
    assert always.seen == [7]


def test_a_schedule_on_an_event_without_a_clock_is_an_error(hookline_manager: PluginManager) -> None:
    class Confused:
        @hookimpl(every=5)
        def pre_training(self): ...

    with pytest.raises(PluginError, match="plugin 'Confused': pre_training has a schedule, but the event has no clock"):
        hookline_manager.register(Confused())


CLOCKED = [event for event in PluginManager().events.values() if event.clock != "none"]


def emissions(event: Event, count: int) -> list[dict[str, Any]]:
    """The event's arguments in a run of so many epochs, steps or rollouts, as the trainer and the worker emit it."""
    # `state.epoch` is the epoch under way; steps and rollouts are counted when they end.
    first = 0 if event.clock == "epoch" or event.starts else 1
    return [
        {
            **dict.fromkeys(event.arguments),
            **({"state": TrainerState(epoch=tick, step=tick)} if "state" in event.arguments else {}),
            **({"context": HookContext(step=tick)} if "context" in event.arguments else {}),
            **({"step": tick} if "step" in event.arguments else {}),
        }
        for tick in range(first, first + count)
    ]


class Numbered:
    """Notes which emission it is called in."""

    def __init__(self, event: Event, schedule: Schedule) -> None:
        self.now = 0
        self.called: list[int] = []
        self.call = hookimpl(specname=event.name, schedule=schedule)(lambda: self.called.append(self.now))


def calls(event: Event, schedule: Schedule, emitted: Iterable[int], complete: int = 0) -> list[int]:
    """In which of the emissions of a run a scheduled implementation is called; they are counted from 1."""
    manager, plugin = PluginManager(), Numbered(event, schedule)
    manager.register(plugin)
    manager.set_clocks(**{event.clock: complete})
    run = emissions(event, 40)
    for plugin.now in emitted:
        getattr(manager.emit, event.name)(**run[plugin.now - 1])
    return plugin.called


@pytest.mark.parametrize("event", CLOCKED, ids=lambda event: event.name)
def test_every_three_of_seven_is_after_the_third_and_the_sixth(event: Event) -> None:
    expected = [4, 7] if event.starts else [3, 6]  # the start of the fourth has three before it
    assert calls(event, Every(3), range(1, 8)) == expected
    assert calls(event, Every(1), range(1, 8)) == list(range(2 if event.starts else 1, 8))
    assert calls(event, Every(3, start=-1), range(1, 8)) == [1, *expected] if event.starts else expected


@pytest.mark.parametrize("complete", range(8))
@pytest.mark.parametrize("event", CLOCKED, ids=lambda event: event.name)
def test_a_run_resumed_anywhere_calls_what_the_whole_run_calls(event: Event, complete: int) -> None:
    for schedule in (Every(3), Cycle(3, [0, 1]), At([4])):
        whole = calls(event, schedule, range(1, 8))
        before = calls(event, schedule, range(1, complete + 1))
        assert before + calls(event, schedule, range(complete + 1, 8), complete) == whole


@given(st.sampled_from(CLOCKED), st.sets(st.integers(1, 40)).map(sorted), st.integers(1, 12))
def test_a_clock_that_jumps_calls_once_for_all_that_was_passed(event: Event, emitted: list[int], every: int) -> None:
    ticks = [number - 1 if event.starts else number for number in emitted]
    expected = [n for n, a, b in zip(emitted, [0, *ticks], ticks, strict=False) if b // every > a // every]
    assert calls(event, Every(every), emitted) == expected
