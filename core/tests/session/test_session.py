"""A loop of your own: a session with plugins, and no trainer, worker or policy of Hookline's."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hookline import PluginManager, hookimpl
from hookline.plugin_manager.settings import Settings
from hookline.session import Session, open_session
from hookline.testing import EventRecorder
from hookline_hookspecs import TrainerState

NO_PLUGINS = Settings(allowed={})


def test_a_loop_announces_the_moments_it_has(hookline_manager: PluginManager, hookline_events: EventRecorder) -> None:
    state = TrainerState(total_epochs=2, total_steps=2)
    with Session(hookline_manager, state) as session:
        for epoch in session.epochs():
            session.begin_step()
            session.end_step({"train/loss": 1.0 / (epoch + 1)})
    assert hookline_events.names() == [
        "on_new_training_run",
        "restore_training_run",
        "pre_training",
        *["on_epoch_start", "pre_training_step", "on_mb_end", "post_training_step", "log_metrics", "on_epoch_end"] * 2,
        "post_training",
        "on_training_complete",
    ]
    (last,) = hookline_events.of("post_training")
    expected = {"final_epoch": 1, "final_step": 2, "total_steps": 2, "final_val_loss": None}
    assert last.arguments["report_data"] == expected


def test_the_loss_of_the_last_validation_is_reported_at_the_end(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with Session(hookline_manager, TrainerState(total_epochs=1)) as session:
        for _ in session.epochs():
            session.begin_validation(is_last_step=True)
            session.begin_validation_step(0)
            session.end_validation_step(0, val_score=0.5)
            session.end_validation(0.5)
    (last,) = hookline_events.of("post_training")
    assert last.arguments["report_data"]["final_val_loss"] == 0.5


def test_a_loss_from_before_the_last_step_is_not_reported_as_the_last(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with Session(hookline_manager, TrainerState(total_epochs=1)) as session:
        for _ in session.epochs():
            session.begin_validation(is_last_step=True)
            session.end_validation(0.5)
            session.begin_step()
            session.end_step()
    (last,) = hookline_events.of("post_training")
    assert last.arguments["report_data"]["final_val_loss"] is None


def test_a_validation_that_ends_the_run_is_the_last_one(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with Session(hookline_manager, TrainerState(total_epochs=10)) as session:
        for _ in session.epochs():
            session.begin_step()
            session.end_step()
            session.begin_validation()
            session.end_validation(0.25)
            session.state.stop_reason = "the loss is low enough"
    (last,) = hookline_events.of("post_training")
    assert last.arguments["report_data"]["final_val_loss"] == 0.25


def test_an_open_ended_loop_ends_where_it_leaves_off(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with Session(hookline_manager, TrainerState()) as session:
        for epoch in session.epochs(until=lambda: session.state.epoch == 2):
            assert epoch <= 2
    assert [event.arguments["state"].epoch for event in hookline_events.of("on_epoch_end")] == [0, 1, 2]


def test_a_plugin_ends_a_run_early_and_the_run_is_complete(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    class Enough:
        @hookimpl
        def on_epoch_end(self, state: TrainerState) -> None:
            if state.epoch == 1:
                state.stop_reason = "good enough"

    hookline_manager.register(Enough())
    with Session(hookline_manager, TrainerState(total_epochs=10)) as session:
        assert list(session.epochs()) == [0, 1]
    assert hookline_events.names()[-2:] == ["post_training", "on_training_complete"]


def test_a_restored_run_goes_on_after_the_last_epoch_that_was_complete(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    class Remembers:
        due: list[int]

        @hookimpl
        def restore_training_run(self, state: TrainerState) -> str:
            state.epoch, state.step = 4, 50
            return "a checkpoint"

        @hookimpl(every=5)
        def on_epoch_end(self, state: TrainerState) -> None:
            self.due.append(state.epoch)

    plugin = Remembers()
    plugin.due = []
    hookline_manager.register(plugin)
    with Session(hookline_manager, TrainerState(total_epochs=11)) as session:
        assert list(session.epochs()) == [5, 6, 7, 8, 9, 10]
    (start,) = hookline_events.of("pre_training")
    assert start.arguments["report_data"] == {
        "total_epochs": 11,
        "total_steps": None,
        "start_epoch": 5,
        "start_step": 50,
    }
    assert plugin.due == [9]


def test_a_loop_that_raises_has_failed(hookline_manager: PluginManager, hookline_events: EventRecorder) -> None:
    def loop() -> None:
        with Session(hookline_manager, TrainerState(total_epochs=3)) as session:
            for _ in session.epochs():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert hookline_events.names()[-2:] == ["on_epoch_start", "on_training_failed"]


def test_background_work_is_done_when_the_session_ends(hookline_manager: PluginManager) -> None:
    class Slow:
        seen: list[int]

        @hookimpl(background=True)
        def on_epoch_end(self, state: TrainerState) -> None:
            self.seen.append(state.epoch)

    slow = Slow()
    slow.seen = []
    hookline_manager.register(slow)
    with Session(hookline_manager, TrainerState(total_epochs=20)) as session:
        for _ in session.epochs():
            pass
    assert slow.seen == list(range(20))


class Model:
    """All that a checkpoint asks of a policy."""

    def __init__(self) -> None:
        self.weight = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.weight = state["weight"]


def test_a_session_opens_the_installed_plugins_and_leaves_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for plugin in ("metrics", "checkpoint", "status"):
        pytest.importorskip(f"hookline_{plugin}")
    monkeypatch.chdir(tmp_path)
    model = Model()
    with open_session("runs/mine", policy=model, total_epochs=3) as session:
        for _ in session.epochs():
            session.begin_step()
            model.weight += 1
            session.end_step({"train/loss": 1 / model.weight})
    folder = tmp_path / "runs" / "mine"
    with closing(sqlite3.connect(folder / "stats.sqlite")) as database:
        rows = database.execute("SELECT step, value FROM metrics WHERE name = 'train/loss' ORDER BY step").fetchall()
    assert (1, 1.0) in rows
    assert json.loads((folder / "status.json").read_text())
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["epoch-000002"]


def test_faults_of_plugins_are_shown_when_the_session_ends(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        @hookimpl
        def on_epoch_end(self) -> None:
            raise RuntimeError("out of ink")

    with open_session(total_epochs=1, settings=NO_PLUGINS) as session:
        session.plugins.register(Broken(), "printer")
        for _ in session.epochs():
            pass
    shown = capsys.readouterr().err
    assert "printer" in shown
    assert "out of ink" in shown


def test_any_state_with_counters_will_do(hookline_manager: PluginManager) -> None:
    """A plugin that runs under our trainer must run under a state of another class."""

    class OtherState:
        epoch = 0
        step = 0
        total_epochs: int | None = 2
        total_steps: int | None = None
        loss_stats: dict[str, float]

    state: Any = OtherState()
    state.loss_stats = {}
    with Session(hookline_manager, state) as session:
        for _ in session.epochs():
            session.begin_step()
            session.end_step({"train/loss": 0.5})
    assert (state.epoch, state.step, state.loss_stats) == (1, 2, {"train/loss": 0.5})
