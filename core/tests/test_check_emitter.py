"""The conformance kit for loops: what it accepts, and each promise that it finds broken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from hookline import PluginManager
from hookline.session import Session
from hookline.testing import EmitterError, check_emitter
from hookline_hookspecs import TrainerState

Step = Callable[[Session], None]


def plain_step(session: Session) -> None:
    session.begin_step()
    session.end_step({"train/loss": 1.0})


def loop(step: Step = plain_step, *, ends: bool = True, validates: bool = False) -> Callable[[object], None]:
    def run(plugin: object) -> None:
        with PluginManager() as manager:
            manager.register(plugin, "recorder")
            with Session(manager, TrainerState(total_epochs=2)) as session:
                for _ in session.epochs():
                    session.begin_train_phase()
                    for _ in range(3):
                        step(session)
                    if ends:
                        session.end_train_phase()
                    if validates:
                        session.begin_validation()
                        session.begin_validation_step(0)
                        session.end_validation_step(0, 0.5)
                        session.end_validation(0.5, metrics={"val/accuracy": 1.0})

    return run


def faults_of(run: Callable[[object], None]) -> str:
    with pytest.raises(EmitterError) as raised:
        check_emitter(run)
    return str(raised.value)


def test_a_loop_over_a_session_is_a_good_emitter() -> None:
    check_emitter(loop(validates=True))


def test_a_loop_that_forgets_the_end_of_a_phase_is_found_out() -> None:
    found = faults_of(loop(ends=False))
    assert "on_train_phase_start is emitted again before on_train_phase_end" in found


def test_a_loop_that_counts_by_itself_is_found_out() -> None:
    def step(session: Session) -> None:
        plain_step(session)
        session.state.step += 1

    assert "state.step must count 1 at each post_training_step, from 0; it was 1, 3, 5" in faults_of(loop(step))


def test_a_report_with_other_keys_is_found_out() -> None:
    def step(session: Session) -> None:
        session.emit.pre_training_step(state=session.state, report_data={"current_step": session.state.step, "lr": 1})
        session.end_step({"train/loss": 1.0})

    found = faults_of(loop(step))
    assert "report_data of pre_training_step lacks current_epoch, total_steps" in found
    assert "report_data of pre_training_step has lr, which is not its own" in found


def test_a_loop_without_gradient_steps_is_found_out() -> None:
    assert "pre_training_step is never emitted" in faults_of(loop(lambda _: None))


def test_a_loop_that_swallows_a_critical_plugins_error_is_found_out() -> None:
    def run(plugin: object) -> None:
        with suppress(Exception):
            loop()(plugin)

    assert "its error must end the run" in faults_of(run)


def test_a_loop_that_does_not_say_that_it_failed_is_found_out() -> None:
    def run(plugin: Any) -> None:
        class Deaf:
            def __getattr__(self, event: str) -> Callable[..., Any]:
                return lambda **arguments: getattr(manager.emit, event)(**arguments)

            def on_training_failed(self, **_: Any) -> None: ...

        with PluginManager() as manager:
            manager.register(plugin, "recorder")
            session = Session(manager, TrainerState(total_epochs=1))
            session.emit = Deaf()  # type: ignore[assignment]
            with session:
                for _ in session.epochs():
                    plain_step(session)

    assert "a run that fails emits on_training_failed once, not 0 times" in faults_of(run)
