"""However a run ends before its time, it ends in `on_training_failed`, and the error goes up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import pytest

from hookline import PluginManager
from hookline.plugin_manager.faults import PluginExitError
from hookline.rollout import CurriculumConfig, Lesson
from hookline.rollout.errors import LessonError
from hookline.session import Session, StateTypeError, Terminated
from hookline.testing import EventRecorder
from hookline.training import RolloutConfig, Trainer, TrainerConfig
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
        (lambda state: os.kill(os.getpid(), signal.SIGHUP), Terminated),
        (lambda state: sys.exit(0), PluginExitError),
    ],
    ids=["exception", "keyboard interrupt", "SIGINT", "SIGTERM", "SIGHUP", "exit"],
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
    assert (Terminated().code, str(Terminated())) == (143, "terminated by SIGTERM")
    assert (Terminated(signal.SIGHUP).code, str(Terminated(signal.SIGHUP))) == (129, "terminated by SIGHUP")


def test_a_run_under_nohup_outlives_its_terminal(supervised: Callable[..., Trainer]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trainer = supervised(epochs=1)
        trainer.plugins.register(AtStepTwo(lambda state: os.kill(os.getpid(), signal.SIGHUP)))
        assert trainer.train().step == 2
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("moment", ["reset", "step"])
def test_an_environment_that_calls_exit_fails_the_run_by_an_error_that_names_its_lesson(
    hookline_manager: PluginManager, hookline_events: EventRecorder, moment: str
) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Leaves(gymnasium.Wrapper):
        def step(self, action):
            return sys.exit(0) if moment == "step" else self.env.step(action)

        def reset(self, **options):
            return sys.exit(0) if moment == "reset" and hookline_events.names() else self.env.reset(**options)

    lesson = Lesson("leaving", lambda: Leaves(gymnasium.make("CartPole-v1")))
    curriculum = CurriculumConfig([lesson], eval_frequency=None, micro_eval_frequency=None)
    config = TrainerConfig(epochs=1, rollout=RolloutConfig(num_environments=2, steps_per_rollout=8, minibatches=2))
    with pytest.raises(LessonError, match=rf"lesson 'leaving': environment .*, {moment}.*: raised SystemExit: 0"):
        Trainer(config, curriculum, plugins=hookline_manager).train()
    assert hookline_events.names()[-1] == "on_training_failed"


def test_a_loop_of_ones_own_may_exit_and_its_run_has_failed(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with pytest.raises(SystemExit) as caught, Session(hookline_manager, TrainerState(total_epochs=3)):
        sys.exit(7)
    assert caught.value.code == 7
    assert hookline_events.names()[-1] == "on_training_failed"


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
        r"Plugins called: 'meddler'. Plugins write to state.shared, under their own name.",
    ):
        supervised().train()


def test_a_reason_to_stop_that_is_no_text_is_named(
    supervised: Callable[..., Trainer], hookline_manager: PluginManager
) -> None:
    class Meddler:
        @hookimpl
        def on_epoch_end(self, state: TrainerState) -> None:
            state.stop_reason = 7  # type: ignore[assignment]

    hookline_manager.register(Meddler(), "meddler")
    with pytest.raises(
        StateTypeError,
        match=r"in on_epoch_end a plugin set state.stop_reason to 7, a int; it must be a str, or None. Plugins called: 'medd",
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
