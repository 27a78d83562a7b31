"""However a run ends before its time, it ends in `on_training_failed`, and the error goes up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from hookline import PluginManager
from hookline.session import StateTypeError, Terminated
from hookline.testing import EventRecorder
from hookline.training import Trainer
from hookline_hookspecs import TrainerState, hookimpl


class AtStepTwo:
    """Does something to the run after its second step."""

    critical = True

    def __init__(self, action: Callable[[TrainerState], None]) -> None:
        self._action = action

    @hookimpl
    def post_training_step(self, state: TrainerState) -> None:
        if state.step == 2:
            self._action(state)


def raise_(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda state: raise_(ZeroDivisionError("one too many")), ZeroDivisionError),
        (lambda state: raise_(KeyboardInterrupt()), KeyboardInterrupt),
        (lambda state: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
        (lambda state: os.kill(os.getpid(), signal.SIGTERM), Terminated),
    ],
    ids=["exception", "keyboard interrupt", "SIGINT", "SIGTERM"],
)
def test_a_run_that_is_ended_says_so_and_raises(
    supervised: Callable[..., Trainer],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    action: Callable[[TrainerState], None],
    error: type[BaseException],
) -> None:
    hookline_manager.register(AtStepTwo(action))
    with pytest.raises(error):
        supervised().train()
    (failed,) = hookline_events.of("on_training_failed")
    assert isinstance(failed.arguments["error"], error)
    assert failed.arguments["state"].step == 2
    assert hookline_events.names()[-1] == "on_training_failed"
    assert "on_training_complete" not in hookline_events.names()


def test_sigterm_does_again_what_it_did_before_once_the_run_is_over(supervised: Callable[..., Trainer]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    supervised(epochs=1).train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_terminated_process_has_the_exit_code_that_shells_know() -> None:
    assert Terminated().code == 143
    assert str(Terminated()) == "terminated by SIGTERM"


def test_a_failure_in_a_rollout_stops_the_worker_and_fails_the_run(
    playing: Callable[..., Trainer], hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    class Broken:
        critical = True

        @hookimpl
        def on_rollout_end(self) -> None:
            raise RuntimeError("the reward model is gone")

    hookline_manager.register(Broken())
    with pytest.raises(RuntimeError, match="the reward model is gone"):
        playing().train()
    assert hookline_events.names()[-3:] == ["on_rollout_end", "on_worker_stop", "on_training_failed"]


def test_a_failure_before_the_first_step_fails_the_run_too(
    supervised: Callable[..., Trainer], hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    class Refuses:
        critical = True

        @hookimpl
        def on_new_training_run(self) -> None:
            raise RuntimeError("this folder holds another run")

    hookline_manager.register(Refuses())
    with pytest.raises(RuntimeError, match="this folder holds another run"):
        supervised().train()
    assert hookline_events.names()[-2:] == ["on_new_training_run", "on_training_failed"]


def test_a_failure_at_the_very_end_is_not_a_complete_run(
    supervised: Callable[..., Trainer], hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    class CannotSave:
        critical = True

        @hookimpl
        def on_training_complete(self) -> None:
            raise OSError("no space left on device")

    hookline_manager.register(CannotSave())
    with pytest.raises(OSError, match="no space left"):
        supervised(epochs=1).train()
    assert hookline_events.names()[-1] == "on_training_failed"


def test_what_ended_the_run_is_not_hidden_by_a_plugin_that_cannot_cope(
    supervised: Callable[..., Trainer], hookline_manager: PluginManager
) -> None:
    class FailsTwice(AtStepTwo):
        @hookimpl
        def on_training_failed(self) -> None:
            raise OSError("no space for last words")

    hookline_manager.register(FailsTwice(lambda state: raise_(ValueError("the cause"))))
    with pytest.raises(ValueError, match="the cause") as caught:
        supervised().train()
    assert "then on_training_failed raised OSError: no space for last words" in caught.value.__notes__


def test_a_plugin_that_changes_a_type_in_the_state_is_named(
    supervised: Callable[..., Trainer], hookline_manager: PluginManager
) -> None:
    class Meddler:
        @hookimpl
        def on_epoch_end(self, state: TrainerState) -> None:
            state.epoch = "the last"  # type: ignore[assignment]

    hookline_manager.register(Meddler(), "meddler")
    with pytest.raises(
        StateTypeError,
        match=r"in on_epoch_end a plugin set state.epoch to 'the last', a str; it must stay a int. "
        r"Called were: 'meddler'. A plugin writes to state.shared, under its own name.",
    ):
        supervised().train()


def test_a_plugin_that_changes_the_type_of_the_state_itself_is_named(
    supervised: Callable[..., Trainer], hookline_manager: PluginManager
) -> None:
    class Other(TrainerState):
        __slots__ = ()

    class Meddler:
        @hookimpl
        def on_mb_end(self, state: TrainerState) -> None:
            state.__class__ = Other

    hookline_manager.register(Meddler(), "meddler")
    with pytest.raises(
        StateTypeError, match="in on_mb_end a plugin made the state a Other; it must stay a TrainerState"
    ):
        supervised().train()
