"""When a loss applies: begin inclusive, end exclusive, positions in a cycle, epochs or steps, any of several windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.testing import EventRecorder
from hookline.training import Trainer
from hookline.training.errors import TrainerConfigError
from hookline.training.losses import LossSchedule, LossWindow
from hookline_hookspecs import TrainerState


def epochs_of(*windows: Any) -> list[int]:
    schedule = LossSchedule(windows)
    return [epoch for epoch in range(12) if schedule.applies_now(TrainerState(epoch=epoch))]


def test_a_loss_without_windows_always_applies() -> None:
    assert epochs_of() == list(range(12))


def test_a_window_begins_inclusive_and_ends_exclusive() -> None:
    assert epochs_of({"begin": 3, "end": 6}) == [3, 4, 5]
    assert epochs_of({"begin": 9}) == [9, 10, 11]


def test_a_cycle_has_active_positions_counted_from_epoch_0() -> None:
    assert epochs_of({"cycle": 4, "active": (1, 2)}) == [1, 2, 5, 6, 9, 10]
    assert epochs_of({"begin": 2, "cycle": 4, "active": (1, 2)}) == [2, 5, 6, 9, 10]


def test_several_windows_are_joined_by_or() -> None:
    assert epochs_of({"end": 2}, {"begin": 10}, {"cycle": 6, "active": (0,)}) == [0, 1, 6, 10, 11]


def test_a_window_of_steps_goes_by_steps() -> None:
    schedule = LossSchedule([LossWindow(begin=5, end=7, clock="step")])
    assert [step for step in range(10) if schedule.applies_now(TrainerState(epoch=6, step=step))] == [5, 6]


@pytest.mark.parametrize(
    ("step", "steps", "expected"), [(0, 5, False), (0, 6, True), (4, 4, True), (6, 1, True), (7, 4, False)]
)
def test_an_epoch_concerns_a_loss_when_any_of_its_steps_does(step: int, steps: int, expected: bool) -> None:
    schedule = LossSchedule([LossWindow(begin=5, end=7, clock="step")])
    assert schedule.applies_in_epoch(TrainerState(step=step), steps) is expected


def test_a_cycle_of_steps_is_found_within_an_epoch() -> None:
    schedule = LossSchedule([LossWindow(cycle=10, active=(9,), clock="step")])
    assert not schedule.applies_in_epoch(TrainerState(step=10), 9)
    assert schedule.applies_in_epoch(TrainerState(step=10), 10)


@st.composite
def any_window(draw: st.DrawFn) -> LossWindow:
    begin, cycle = draw(st.integers(0, 30)), draw(st.integers(1, 9))
    return LossWindow(
        begin=begin,
        end=draw(st.none() | st.integers(begin + 1, 40)),
        cycle=cycle,
        active=tuple(draw(st.sets(st.integers(0, cycle - 1), min_size=1))),
        clock=draw(st.sampled_from(["epoch", "step"])),
    )


def is_inside(window: LossWindow, state: TrainerState) -> bool:
    """What a window means, by definition."""
    tick = getattr(state, window.clock)
    return window.begin <= tick < (window.end or math.inf) and tick % window.cycle in window.active


@given(st.lists(any_window(), min_size=1, max_size=3), st.integers(0, 50), st.integers(0, 50), st.integers(1, 20))
def test_a_loss_applies_to_the_steps_that_its_windows_hold(
    windows: list[LossWindow], epoch: int, step: int, steps: int
) -> None:
    schedule = LossSchedule(windows)
    states = [TrainerState(epoch=epoch, step=step + taken) for taken in range(steps)]
    applies = [any(is_inside(window, state) for window in windows) for state in states]
    assert [schedule.applies_now(state) for state in states] == applies
    assert schedule.applies_in_epoch(states[0], steps) == any(applies)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ({"begin": 4, "end": 4}, "never applies: it needs 0 <= begin < end"),
        ({"begin": -1}, "never applies"),
        ({"cycle": 3, "active": (3,)}, "active must name positions from 0 to 2"),
        ({"cycle": 3, "active": ()}, "active must name positions from 0 to 2"),
        ({"clock": "epochs"}, r"clock must be 'epoch' or 'step' \(did you mean 'epoch'\?\)"),
        ({"begins": 4}, r"a window of a schedule has no 'begins' \(did you mean 'begin'\?\)"),
    ],
)
def test_a_window_that_makes_no_sense_is_an_error(window: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainerConfigError, match=message):
        LossSchedule([window])


def losses_by_step(events: EventRecorder) -> list[set[str]]:
    names = {"train/ppo_actor", "train/ppo_critic"}
    return [names & set(event.arguments["report_data"]) for event in events.of("post_training_step")]


def test_each_loss_of_a_run_keeps_its_own_schedule(
    playing: Callable[..., Trainer], hookline_events: EventRecorder
) -> None:
    playing(epochs=3, losses={"ppo_actor": {"schedule": [{"begin": 1, "end": 2}]}, "ppo_critic": {}}).train()
    critic, both = {"train/ppo_critic"}, {"train/ppo_actor", "train/ppo_critic"}
    assert losses_by_step(hookline_events) == [critic, critic, both, both, critic, critic]


def test_a_step_without_any_loss_leaves_the_weights_alone(
    playing: Callable[..., Trainer], hookline_events: EventRecorder
) -> None:
    trainer = playing(epochs=1, losses={"ppo_critic": {"schedule": [{"begin": 1, "clock": "step", "end": 2}]}})
    before = trainer.policy.critic[0].weight.clone()
    seen = []
    trainer.plugins.add_hookcall_monitoring(
        lambda name, *_: seen.append(trainer.policy.critic[0].weight.clone()) if name == "on_mb_end" else None,
        lambda *_: None,
    )
    trainer.train()
    assert losses_by_step(hookline_events) == [set(), {"train/ppo_critic"}]
    assert seen[0].equal(before)
    assert not seen[1].equal(before)
