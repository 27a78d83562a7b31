"""A run's folder is one run's at a time, and says what the run was told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hookline
from hookline import PluginManager, hookimpl
from hookline.errors import HooklineError
from hookline.plugin_manager.settings import Settings
from hookline.session import RunFolderError, Session, open_session
from hookline.session.run_folder import read_config, write_config
from hookline_hookspecs import TrainerState

NO_PLUGINS = Settings(allowed={})

HOLDS_A_FOLDER = """
import sys, time
from hookline.plugin_manager.settings import Settings
from hookline.session import open_session
with open_session(sys.argv[1], settings=Settings(allowed={})):
    print("ready", flush=True)
    time.sleep(600)
"""


def test_the_folder_says_what_the_run_was_told_but_for_secrets(tmp_path: Path) -> None:
    config = {"learning_rate": 0.1, "service": {"api_key": "abcdef123", "url": "https://me:pw@host/"}}
    with open_session(tmp_path / "run", config=config, settings=NO_PLUGINS):
        pass
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "status" in written.pop("disabled")
    assert "hookline" in written.pop("packages")
    assert written == {
        "learning_rate": 0.1,
        "service": {"api_key": "********", "url": "https://********@host/"},
        "plugins": {},
    }


def test_a_trainers_folder_has_its_config_and_its_plugins(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from hookline.training import TrainerConfig

    hookline.train(TrainerConfig(1, run_dir=tmp_path / "run"), settings=Settings(allowed={"nan-guard": "here"}))
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (written["task"], written["hookline"]) == (None, hookline.__version__)
    assert (written["trainer"]["epochs"], written["trainer"]["run_dir"]) == (1, str(tmp_path / "run"))
    (guard,) = written["plugins"].values()
    assert (guard["distribution"], guard["version"], guard["options"]) == (
        "hookline-nan-guard",
        "1.0.0",
        {"patience": 3},
    )


def test_a_second_run_does_not_mix_with_the_first(tmp_path: Path) -> None:
    with open_session(tmp_path / "run", settings=NO_PLUGINS):
        pass
    with (
        pytest.raises(RunFolderError, match=r"run holds a run already: resume it by --resume .*another folder"),
        open_session(tmp_path / "run", settings=NO_PLUGINS),
    ):
        pass


def test_two_runs_of_one_process_cannot_share_a_folder(tmp_path: Path, hookline_manager: PluginManager) -> None:
    hookline_manager.register(Restores())
    with (
        Session(hookline_manager, TrainerState(run_dir=tmp_path / "run")),
        pytest.raises(RunFolderError, match="in use by another run of this process"),
        Session(hookline_manager, TrainerState(run_dir=tmp_path / "run", resume=True)),
    ):
        pass


def test_a_folder_in_use_says_by_what_and_is_free_again_once_that_is_killed(
    tmp_path: Path, hookline_manager: PluginManager
) -> None:
    hookline_manager.register(Restores())
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_FOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        state = TrainerState(run_dir=tmp_path / "run", resume=True)
        with (
            pytest.raises(RunFolderError, match=rf"is in use by process {other.pid} on \S+ \(-c .*\) since \d{{4}}-"),
            Session(hookline_manager, state),
        ):
            pass
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    with Session(hookline_manager, TrainerState(run_dir=tmp_path / "run", resume=True)):
        pass


def refused(folder: Path, manager: PluginManager) -> bool:
    try:
        with Session(manager, TrainerState(run_dir=folder, resume=True)):
            return False
    except RunFolderError as error:
        assert "is in use by process" in str(error)
        return True


def test_a_run_that_copies_its_own_folder_keeps_it(tmp_path: Path, hookline_manager: PluginManager) -> None:
    hookline_manager.register(Restores())
    copies = HOLDS_A_FOLDER.replace(
        "    print(", "    import shutil; shutil.copytree(sys.argv[1], sys.argv[1] + '-copy')\n    print("
    )
    run = subprocess.Popen(
        [sys.executable, "-c", copies, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == b"ready\n"
            assert (tmp_path / "run-copy" / ".lock").exists()
            assert refused(tmp_path / "run", hookline_manager)
        finally:
            run.kill()


FORKS = """
import os, subprocess, sys, time
from hookline.plugin_manager.settings import Settings
from hookline.session import open_session
with open_session(sys.argv[1], settings=Settings(allowed={})):
    if sys.argv[2] == "subprocess":
        subprocess.Popen([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"])
    elif os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["os.fork", "subprocess"])
def test_a_child_that_outlives_a_killed_run_does_not_keep_the_folder(
    tmp_path: Path, hookline_manager: PluginManager, how: str
) -> None:
    hookline_manager.register(Restores())
    run = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path / "run"), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        assert refused(tmp_path / "run", hookline_manager)
        run.kill()
        run.wait()
        os.kill(child, 0)  # it is still there
        assert not refused(tmp_path / "run", hookline_manager)
        os.kill(child, signal.SIGKILL)


class Restores:
    @hookimpl
    def restore_training_run(self) -> None:
        """Finds nothing."""


def test_resuming_where_there_is_no_run_says_so(tmp_path: Path, hookline_manager: PluginManager) -> None:
    hookline_manager.register(Restores())
    with (
        pytest.raises(RunFolderError, match=r"nothing to resume in .*none: there is no such folder\. Leave out"),
        Session(hookline_manager, TrainerState(run_dir=tmp_path / "none", resume=True)),
    ):
        pass
    with (
        pytest.raises(RunFolderError, match=r"nothing to resume in .*: it holds no run"),
        Session(hookline_manager, TrainerState(run_dir=tmp_path, resume=True)),
    ):
        pass


def test_resuming_without_a_plugin_that_restores_says_what_to_install(hookline_manager: PluginManager) -> None:
    with (
        pytest.raises(HooklineError, match="none is active: pip install hookline-checkpoint"),
        Session(hookline_manager, TrainerState(resume=True)),
    ):
        pass


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew_and_says_so(
    tmp_path: Path, hookline_manager: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    hookline_manager.register(Restores())
    with Session(hookline_manager, TrainerState(run_dir=tmp_path / "run")):
        pass
    with Session(hookline_manager, TrainerState(run_dir=tmp_path / "run", resume=True)) as session:
        assert session.start_epoch == 0
    assert "nothing to resume from" in caplog.text


def test_a_run_that_cannot_be_resumed_keeps_the_config_that_it_has(
    tmp_path: Path, hookline_manager: PluginManager
) -> None:
    class Refuses:
        critical = True

        @hookimpl
        def restore_training_run(self, state: TrainerState) -> None:
            if state.config["size"] != 1:
                raise HooklineError("of another size")

    hookline_manager.register(Refuses())
    folder = tmp_path / "run"
    with Session(hookline_manager, TrainerState(run_dir=folder, config={"size": 1})):
        pass
    other = TrainerState(run_dir=folder, config={"size": 2}, resume=True)
    with pytest.raises(HooklineError, match="of another size"), Session(hookline_manager, other):
        pass
    assert json.loads((folder / "config.json").read_text())["size"] == 1


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunFolderError, match=r"the run's folder .*file/run cannot be created: Not a directory"),
        open_session(tmp_path / "file" / "run", settings=NO_PLUGINS),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x" * 300, "xx cannot be created: File name too long"),
        ("a\0b", r"a\\0b cannot be created: .*embedded null"),
        ("file", "file cannot be created: File exists"),
    ],
    ids=["long", "NUL", "file"],
)
def test_a_path_that_can_be_no_folder_is_an_error_that_names_it(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=problem), open_session(tmp_path / name, settings=NO_PLUGINS):
        pass


@pytest.mark.parametrize("name", ["two\nlines", "file:x?mode=ro", "[bold]", " "])
def test_any_other_name_will_do(tmp_path: Path, name: str) -> None:
    with open_session(tmp_path / name, settings=NO_PLUGINS):
        pass
    assert json.loads((tmp_path / name / "config.json").read_text())["plugins"] == {}


def test_a_full_disk_at_the_start_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to("/dev/full")
    with (
        pytest.raises(RunFolderError, match=rf"{tmp_path}/.lock cannot be written: No space left on device"),
        open_session(tmp_path, settings=NO_PLUGINS),
    ):
        pass


def test_a_config_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(RunFolderError, match=rf"{tmp_path}/config.json cannot be written: Is a directory"):
        write_config(tmp_path, {})


def test_a_config_that_is_nested_too_deeply_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(RunFolderError, match=r"config\.json is not JSON: maximum recursion depth"):
        read_config(tmp_path)
