"""A session inside another library's trainer, which owns the loop, its checkpoints and its resume."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hookline import PluginManager, hookimpl
from hookline.errors import HooklineError
from hookline.plugin_manager.settings import Settings
from hookline.session import Session, is_bridge_disabled, open_session
from hookline.testing import EventRecorder
from hookline_hookspecs import TrainerState

NO_PLUGINS = Settings(allowed={})


class Counter:
    """Counts steps, and remembers the count over a resume."""

    def __init__(self) -> None:
        self.steps = 0

    @hookimpl
    def post_training_step(self) -> None:
        self.steps += 1

    @hookimpl
    def save_plugin_state(self) -> Mapping[str, Any]:
        return {"steps": self.steps}

    @hookimpl
    def load_plugin_state(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        self.steps = saved["counter"]["steps"]


def train(session: Session, epochs: int) -> None:
    for epoch in range(session.start_epoch, session.start_epoch + epochs):
        session.begin_epoch(epoch)
        for _ in range(3):
            session.begin_step()
            session.end_step({"train/loss": 1.0})
        session.end_epoch()


def test_a_host_resumes_with_its_own_counters_and_every_plugins_state(tmp_path: Path) -> None:
    first = Counter()
    with open_session(tmp_path / "run", host="a host", plugins={"counter": first}, settings=NO_PLUGINS) as session:
        train(session, epochs=2)
        in_the_hosts_checkpoint = json.dumps(session.host_state())
    second = Counter()
    with open_session(
        tmp_path / "run",
        host="a host",
        host_state=json.loads(in_the_hosts_checkpoint),
        plugins={"counter": second},
        settings=NO_PLUGINS,
    ) as session:
        assert (session.state.epoch, session.state.step, session.start_epoch) == (1, 6, 2)
        train(session, epochs=1)
    assert second.steps == 9


def test_a_host_that_saves_in_the_middle_of_an_epoch_resumes_in_that_epoch(tmp_path: Path) -> None:
    with open_session(tmp_path / "run", host="a host", settings=NO_PLUGINS) as session:
        session.begin_epoch(0)
        session.begin_step()
        session.end_step()
        saved = session.host_state()
    with open_session(tmp_path / "run", host="a host", host_state=saved, settings=NO_PLUGINS) as session:
        assert (session.state.step, session.start_epoch) == (1, 0)


def test_the_config_of_a_run_names_its_host(tmp_path: Path) -> None:
    with open_session(tmp_path / "run", host="a host", settings=NO_PLUGINS):
        pass
    assert json.loads((tmp_path / "run" / "config.json").read_text())["host"] == "a host"


def test_what_plugins_want_on_disk_is_there_before_a_hosts_checkpoint_counts(
    hookline_manager: PluginManager,
) -> None:
    written: list[str] = []
    with Session(hookline_manager, TrainerState(host="a host")) as session:
        session.state.shared["metrics"]["before_checkpoint"] = lambda: written.append("metrics")
        session.host_state()
        session.host_state()
    assert written == ["metrics"]


def test_no_plugin_restores_a_run_behind_the_hosts_back(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with Session(hookline_manager, TrainerState(host="a host")):
        pass
    assert "restore_training_run" not in hookline_events.names()


def test_half_a_resume_is_refused(hookline_manager: PluginManager) -> None:
    with (
        pytest.raises(HooklineError, match=r"half a resume: a host restores weights.*must come from the same one"),
        Session(hookline_manager, TrainerState(host="a host", resume=True)),
    ):
        pass


def test_gradients_are_alive_when_a_minibatch_ends_apart_from_its_step(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with Session(hookline_manager, TrainerState()) as session:
        session.begin_epoch(0)
        session.begin_step()
        session.end_minibatch()
        names = hookline_events.names()
        assert names[-1] == "on_mb_end"
        session.end_step({"train/loss": 0.5})
        assert hookline_events.names()[len(names) :] == ["post_training_step", "log_metrics"]
        assert session.state.step == 1


def test_numbers_that_come_late_go_to_the_step_they_belong_to(
    hookline_manager: PluginManager, hookline_events: EventRecorder
) -> None:
    with Session(hookline_manager, TrainerState()) as session:
        for _ in range(3):
            session.begin_step()
            session.end_step()
        session.log({"train/loss": 0.25}, step=2)
    late = hookline_events.of("log_metrics")[-1].arguments
    assert (late["report_data"], late["step"]) == ({"train/loss": 0.25}, 2)


def test_a_validation_reports_all_its_metrics(hookline_manager: PluginManager, hookline_events: EventRecorder) -> None:
    with Session(hookline_manager, TrainerState()) as session:
        session.begin_validation()
        session.end_validation(0.5, metrics={"val/accuracy": 0.9})
    report = hookline_events.of("post_validation")[0].arguments["report_data"]
    assert report == {"current_epoch": 0, "val_avg_loss": 0.5, "val/accuracy": 0.9}


def test_what_plugins_want_on_disk_is_there_when_the_host_has_their_states(
    hookline_manager: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    class Writer:
        is_written = False

        @hookimpl
        def save_plugin_state(self, state: TrainerState) -> None:
            state.shared["writer"]["before_checkpoint"] = self._write
            state.shared["broken"]["before_checkpoint"] = lambda: 1 / 0

        def _write(self) -> None:
            self.is_written = True

    writer = Writer()
    hookline_manager.register(writer, "writer")
    with Session(hookline_manager, TrainerState(host="a host")) as session:
        session.host_state()
    assert writer.is_written
    assert "plugin 'broken' failed before a checkpoint of a host: ZeroDivisionError('division by zero')" in caplog.text


def test_a_host_resumes_in_a_new_folder_where_the_old_one_is_gone(tmp_path: Path) -> None:
    host_state = {"counters": {"epoch": 1, "step": 6, "agent_step": 0}, "plugins": {}}
    with open_session(tmp_path / "new", host="a host", host_state=host_state, settings=NO_PLUGINS) as session:
        assert (session.start_epoch, session.state.step) == (2, 6)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["host"] == "a host"


def test_a_signal_that_the_program_handles_stays_the_programs(hookline_manager: PluginManager) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with Session(hookline_manager, TrainerState()):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


@pytest.mark.parametrize(("value", "is_disabled"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_a_bridge_is_turned_off_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, is_disabled: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_DISABLE_LIGHTNING", value)
    assert is_bridge_disabled("lightning") is is_disabled
    assert is_bridge_disabled("sb3") is False


def test_a_bridge_is_turned_off_as_a_plugin_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hookline.toml").write_text('disable = ["sb3"]')
    assert is_bridge_disabled("sb3")
    assert not is_bridge_disabled("lightning")
