"""Evaluations in a child process, without a framework: how they start, fail and are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hookline.plugin_manager import PluginManager
from hookline.testing import EventRecorder
from hookline_evaluation import Evaluation
from hookline_evaluation.errors import EvaluationError
from hookline_evaluation.out_of_process.checkpoints import counters_of, find_checkpoint, run_of
from hookline_evaluation.out_of_process.child_process import ChildEvaluation
from hookline_evaluation.out_of_process.jobs import EvaluationJob
from hookline_hookspecs import CheckpointRecord, TrainerState

Run = Callable[..., TrainerState]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 500
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[int]]:
    """The child processes that the test has started, found by the folder in their command line."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def find() -> set[int]:
        found = set()
        for folder in Path("/proc").iterdir():
            try:
                command = (folder / "cmdline").read_bytes() if folder.name.isdecimal() else b""
            except OSError:  # it has ended meanwhile
                continue
            if b"out_of_process.child_process\0" in command and bytes(tmp_path) in command:
                found.add(int(folder.name))
        return found

    return find


def begin(manager: PluginManager, state: TrainerState, checkpoint: Path) -> None:
    """An evaluation is due, and a checkpoint is saved."""
    manager.emit.on_new_training_run(state=state)
    state.epoch = 10
    manager.emit.on_epoch_end(state=state)
    manager.emit.on_checkpoint_saved(state=state, checkpoint=CheckpointRecord(checkpoint, epoch=10, step=state.step))


def test_nothing_begins_before_there_is_a_checkpoint(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Run,
    run_dir: Path,
) -> None:
    evaluation(mode="background")
    hookline_manager.emit.on_epoch_end(state=hookline_state(epoch=10, run_dir=run_dir))
    hookline_manager.emit.on_epoch_start(state=hookline_state(epoch=11, run_dir=run_dir))
    assert "on_evaluation_start" not in hookline_events.names()
    assert "evaluate_policy" not in hookline_events.names()


def test_a_failed_process_is_reported_with_its_last_words_and_stops_no_run(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Run,
    run_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluation(mode="background")
    state = hookline_state(run_dir=run_dir)
    gone = run_dir / "checkpoints" / "epoch-000010"
    begin(hookline_manager, state, gone)

    def is_reported() -> bool:
        hookline_manager.emit.on_epoch_start(state=state)
        return "failed (exit status 1)" in caplog.text

    wait_until(is_reported)
    assert f"{gone}/policy.safetensors cannot be read: No such file or directory" in caplog.text
    assert state.eval_scores == {}


def test_at_most_one_goes_on_and_the_end_of_the_run_ends_it(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_events: EventRecorder,
    hookline_state: Run,
    endless: Path,
    run_dir: Path,
    children: Callable[[], set[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluation(mode="background", deadline_seconds=0.1)
    state = hookline_state(run_dir=run_dir)
    begin(hookline_manager, state, endless)
    wait_until(lambda: len(children()) == 1)
    state.epoch = 20
    hookline_manager.emit.on_epoch_end(state=state)
    hookline_manager.emit.on_checkpoint_saved(state=state, checkpoint=CheckpointRecord(endless, epoch=20))
    assert len(children()) == 1
    hookline_manager.emit.on_training_complete(state=state)
    assert children() == set()
    assert f"the evaluation of {endless} did not finish by the end of the run and was stopped" in caplog.text
    assert hookline_events.names().count("on_evaluation_start") == 1


def test_a_run_that_fails_ends_its_evaluation_at_once(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Run,
    endless: Path,
    run_dir: Path,
    children: Callable[[], set[int]],
) -> None:
    evaluation(mode="background")
    state = hookline_state(run_dir=run_dir)
    begin(hookline_manager, state, endless)
    wait_until(lambda: len(children()) == 1)
    hookline_manager.emit.on_training_failed(state=state, error=RuntimeError("no"))
    assert children() == set()


def test_an_evaluation_that_takes_too_long_is_ended(endless: Path, children: Callable[[], set[int]]) -> None:
    evaluation = ChildEvaluation(EvaluationJob(endless), timeout_seconds=0.2)
    wait_until(lambda: evaluation.wait(0.1))
    with pytest.raises(EvaluationError, match=f"the evaluation of {endless} took more than 0.2 s"):
        evaluation.outcome()
    evaluation.stop()
    assert children() == set()


def test_the_process_does_not_outlive_a_killed_run(endless: Path, children: Callable[[], set[int]]) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from hookline_evaluation.out_of_process.child_process import ChildEvaluation\n"
        "from hookline_evaluation.out_of_process.jobs import EvaluationJob\n"
        "evaluation = ChildEvaluation(EvaluationJob(pathlib.Path(sys.argv[1])), 600)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(endless)]) as run:
        wait_until(lambda: len(children()) == 1)
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: children() == set())


def test_evaluations_that_are_killed_leave_no_files(
    endless: Path, children: Callable[[], set[int]], tmp_path: Path
) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from hookline_evaluation.out_of_process.child_process import ChildEvaluation\n"
        "from hookline_evaluation.out_of_process.jobs import EvaluationJob\n"
        "evaluation = ChildEvaluation(EvaluationJob(pathlib.Path(sys.argv[1])), 600)\n"
        "time.sleep(600)\n"
    )
    before = set(tmp_path.iterdir())
    with subprocess.Popen([sys.executable, "-c", code, str(endless)], process_group=0) as run:
        wait_until(lambda: len(children()) == 1)
        os.killpg(run.pid, signal.SIGKILL)  # both at once, as when a machine runs out of memory
    wait_until(lambda: children() == set())
    assert set(tmp_path.iterdir()) == before


def test_a_run_without_a_folder_is_told_that_it_has_no_checkpoints(
    evaluation: Callable[..., Evaluation],
    hookline_manager: PluginManager,
    hookline_state: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluation(mode="background")
    hookline_manager.emit.on_new_training_run(state=hookline_state(run_dir=None))
    assert "the run has no folder and so no checkpoints" in caplog.text


def test_the_newest_complete_checkpoint_of_a_run_is_meant(run_dir: Path) -> None:
    for name, files in {
        "epoch-000002": ["manifest.json", "policy.safetensors"],
        "epoch-000010": ["manifest.json", "policy.safetensors"],
        "epoch-000011": ["policy.safetensors"],
        ".staging-epoch-000012": ["manifest.json"],
    }.items():
        (run_dir / "checkpoints" / name).mkdir(parents=True)
        for file in files:
            (run_dir / "checkpoints" / name / file).touch()
    newest = run_dir / "checkpoints" / "epoch-000010"
    (newest / "state.json").write_text('{"counters": {"epoch": 10, "step": 44, "agent_step": 1}}')
    assert find_checkpoint(run_dir) == newest
    assert find_checkpoint(newest) == newest
    assert run_of(newest) == run_dir.resolve()
    assert counters_of(newest) == {"epoch": 10, "step": 44}
    assert counters_of(run_dir) == {}


def test_a_folder_without_a_checkpoint_is_an_error_that_says_so(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="has no checkpoint: there is no policy.safetensors in it"):
        find_checkpoint(run_dir)
    with pytest.raises(EvaluationError, match="there is no folder"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(
        EvaluationError, match="is not in the folder of a run: none of its parent folders has a config.json"
    ):
        run_of(tmp_path)
