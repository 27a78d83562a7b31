"""An exception whose own methods raise is a failure like any other, in every place where one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hookline.plugin_manager.settings import read_settings
from hookline.session import Session, open_session
from hookline_hookspecs import TrainerState, hookimpl

for distribution in ("metrics", "checkpoint", "evaluation", "status"):
    pytest.importorskip(f"hookline_{distribution}")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


SHOWN = "Unspeakable (its message cannot be shown)"


class Failing:
    @hookimpl
    def on_epoch_start(self) -> None:
        raise Unspeakable

    @hookimpl(background=True)
    def on_epoch_end(self) -> None:
        raise Unspeakable

    @hookimpl
    def on_training_failed(self, state: TrainerState, error: BaseException) -> None:
        raise Unspeakable


class Critical(Failing):
    critical = True
    on_epoch_start = on_epoch_end = None  # type: ignore[assignment]


def fail(folder: Path, sessions: list[Session]) -> None:
    quiet = read_settings(option_arguments=["metrics.progress=off"])
    with open_session(folder, total_epochs=1, settings=quiet) as session:
        sessions.append(session)
        session.plugins.register(Failing(), "failing")
        session.plugins.register(Critical(), "critical")
        for _ in session.epochs():
            session.begin_step()
            session.end_step({"train/loss": 1.0})
        raise Unspeakable


def test_a_run_with_such_errors_goes_on_and_tells_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    sessions: list[Session] = []
    with pytest.raises(Unspeakable) as caught:
        fail(folder, sessions)
    (session,) = sessions
    assert session.state.step == 1
    faults = {(fault.plugin, fault.event): fault.error for fault in session.plugins.faults.faults.values()}
    assert faults == {
        ("failing", "on_epoch_start"): SHOWN,
        ("failing", "on_epoch_end"): SHOWN,
        ("failing", "on_training_failed"): SHOWN,
        ("critical", "on_training_failed"): SHOWN,
    }
    assert f"plugin 'failing' failed in on_epoch_start: {SHOWN}" in caplog.text
    assert caught.value.__notes__ == [f"then on_training_failed raised {SHOWN}"]
    assert "Plugins with faults" in capsys.readouterr().err
    entries: list[dict[str, Any]] = json.loads((folder / "status.json").read_text())
    assert (entries[-1]["status"], entries[-1]["message"]) == ("FAILURE", SHOWN)
    assert "Unspeakable" in (folder / "report.html").read_text(encoding="utf-8")
