"""`hookline.lock`: what took part is written with version and hash, and what differs is told before a run."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import importlib_metadata
import pytest
from packaging.version import Version

import hookline as hookline_package
from hookline.cli import main
from hookline.plugin_manager import PluginError, lock_file, open_plugins
from hookline.session import open_session

if TYPE_CHECKING:
    from conftest import Site

OBSERVER = "class Plugin:\n    @hookimpl\n    def on_epoch_end(self, state): ...\n"
GUARD = (
    "from hookline_hookspecs import hookimpl\nclass LossGuard:\n    @hookimpl\n    def on_epoch_end(self, state): ...\n"
)


@pytest.fixture(autouse=True)
def _hash_again() -> Iterator[None]:
    """A process hashes what it has imported once; these tests change it."""

    def forget() -> None:
        lock_file._hash_of_package.cache_clear()
        lock_file.fingerprints_of_packages.cache_clear()

    forget()
    yield
    forget()


@pytest.fixture
def project(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Two plugins, one installed and one of the project, and no others."""
    site.module = site.install("observer-x", OBSERVER)  # type: ignore[attr-defined]
    (site.folder / "lock_guard.py").write_text(GUARD)
    (site.folder / "hookline.toml").write_text(
        'load = ["lock_guard.py:LossGuard"]\nallow = ["observer-x", "loss-guard", "status"]\ndisable = ["status"]\n'
    )
    monkeypatch.setenv("HOOKLINE_DISABLE", "")
    return site


def hookline(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code: Any = 0
    lock_file._hash_of_package.cache_clear()
    try:
        main(arguments)
    except SystemExit as exit_:
        code = exit_.code or 0
    captured = capsys.readouterr()
    return int(code), (captured.out + captured.err).strip()


def test_the_lock_has_every_plugin_and_framework_with_version_and_hash(
    project: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hookline(capsys, "lock") == (0, f"{project.folder / 'hookline.lock'}: 2 plugins")
    locked = tomllib.loads((project.folder / "hookline.lock").read_text())
    assert {name: list(entry) for name, entry in locked["plugins"].items()} == {
        "loss-guard": ["load", "hash"],
        "observer-x": ["distribution", "version", "hash"],
    }
    assert locked["plugins"]["loss-guard"]["load"] == "lock_guard.py:LossGuard"
    packages = locked["packages"]
    assert packages["hookline"]["version"] == hookline_package.__version__
    assert packages["numpy"]["version"] == importlib_metadata.version("numpy")
    hashes = [entry["hash"] for entry in (*locked["plugins"].values(), packages["hookline"], packages["numpy"])]
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", own) for own in hashes)
    assert len(set(hashes)) == len(hashes)
    assert hookline(capsys, "lock", "--check") == (0, "")


def change_code(project: Site) -> None:
    file = project.folder / f"{project.module}.py"  # type: ignore[attr-defined]
    file.write_text(file.read_text() + "# changed\n")


def change_version(project: Site) -> None:
    (info,) = project.folder.glob("test_observer_x*.dist-info")
    info.joinpath("METADATA").write_text(info.joinpath("METADATA").read_text().replace("Version: 1.0", "Version: 1.1"))


def change_project(project: Site) -> None:
    (project.folder / "lock_guard.py").write_text(GUARD + "# changed\n")


def change_setting(project: Site) -> None:
    file = project.folder / "hookline.toml"
    file.write_text(file.read_text().replace('load = ["lock_guard.py:LossGuard"]', "").replace('"loss-guard", ', ""))


def add_plugin(project: Site) -> None:
    project.install("newcomer-x", OBSERVER)
    file = project.folder / "hookline.toml"
    file.write_text(file.read_text().replace("allow = [", 'allow = ["newcomer-x", '))


def change_framework(project: Site) -> None:
    file = project.folder / "hookline.lock"
    numpy = importlib_metadata.version("numpy")
    file.write_text(
        file.read_text().replace(f'[packages.numpy]\nversion = "{numpy}"', '[packages.numpy]\nversion = "1.0"')
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_code, "plugin 'observer-x' (test-observer-x 1.0) has other code than the locked one"),
        (change_version, "plugin 'observer-x' is test-observer-x 1.1, and test-observer-x 1.0 is locked"),
        (change_project, "plugin 'loss-guard' (lock_guard.py:LossGuard) has other code than the locked one"),
        (change_setting, "plugin 'loss-guard' is locked (lock_guard.py:LossGuard), but is not loaded"),
        (change_framework, f"numpy is {importlib_metadata.version('numpy')}, and 1.0 is locked"),
        (add_plugin, "plugin 'newcomer-x' (test-newcomer-x 1.0) is not locked"),
    ],
)
def test_what_differs_is_a_warning_of_the_run_and_with_strict_an_error(
    project: Site,
    change: Any,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hookline(capsys, "lock")
    with open_plugins():
        assert caplog.messages == []
    change(project)
    assert hookline(capsys, "lock", "--check") == (1, expected)
    lock = project.folder / "hookline.lock"
    (project.folder / "below").mkdir()
    monkeypatch.chdir(project.folder / "below")  # the lock is found from below
    with open_plugins():
        assert caplog.messages == [f"{lock}: {expected}"]
    caplog.clear()
    with open_plugins(rank=1):
        assert caplog.messages == []
    monkeypatch.setenv("HOOKLINE_STRICT", "1")
    with pytest.raises(PluginError) as caught:
        open_plugins()
    assert str(caught.value) == (
        f"what takes part in this run differs from {lock}, and strict = true:\n  {expected}\n"
        "Install what is locked, or lock what is installed by `hookline lock`"
    )
    monkeypatch.delenv("HOOKLINE_STRICT")
    assert hookline(capsys, "lock")[0] == 0  # the lock that there is, not a second one below it
    assert hookline(capsys, "lock", "--check") == (0, "")


def test_a_plugin_that_is_turned_off_for_one_run_is_no_difference(
    project: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hookline(capsys, "lock")
    assert hookline(capsys, "lock", "--check", "-p", "no:observer-x") == (0, "")


def test_a_broken_plugin_cannot_be_locked(project: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (project.folder / "lock_guard.py").write_text("import nothing_like_it")
    code, said = hookline(capsys, "lock")
    assert code == 1
    assert "No module named 'nothing_like_it'. Repair it or turn it off, and lock then" in " ".join(said.split())
    assert not (project.folder / "hookline.lock").exists()


def test_a_lock_that_cannot_be_read_says_how_to_write_it_again(
    project: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.folder / "hookline.lock").write_text("[plugins]\n")
    code, said = hookline(capsys, "lock", "--check")
    assert code == 1
    assert "hookline.lock cannot be read: 'packages'. Write it again by `hookline lock`" in " ".join(said.split())
    (project.folder / "hookline.lock").unlink()
    code, said = hookline(capsys, "lock", "--check")
    assert (code, " ".join(said.split())) == (
        1,
        "hookline: there is no hookline.lock in this folder or above: write one by `hookline lock`",
    )


def test_the_config_of_a_run_has_the_versions_and_hashes(project: Site, tmp_path: Path) -> None:
    with open_session(tmp_path / "run", total_epochs=1) as session:
        list(session.epochs())
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["plugins"].keys() == {"observer-x", "loss-guard"}
    entries = [*config["plugins"].values(), config["packages"]["hookline"], config["packages"]["numpy"]]
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", own["hash"]) for own in entries)
    assert config["packages"]["python"]["version"].startswith("3.")


def test_without_pip_there_is_no_pylock_and_it_says_how_to_get_pip(
    project: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "hookline.toml").write_text('load = ["lock_guard.py:LossGuard"]\nallow = ["loss-guard"]\n')
    assert hookline(capsys, "lock")[0] == 0  # has imported what it needs
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not (Path(folder) / "pip").is_dir()])
    code, said = hookline(capsys, "lock", "--pylock")
    assert code == 1
    assert " ".join(said.split()).endswith(
        "hookline: a pylock.toml is written by pip, which is not installed here: python -m ensurepip, then "
        "python -m pip install --upgrade pip. hookline.lock is written"
    )
    assert (project.folder / "hookline.lock").exists()


@pytest.mark.skipif(Version(importlib_metadata.version("pip")) >= Version("25.1"), reason="this pip can write one")
def test_a_pip_that_cannot_write_a_pylock_is_named_with_the_one_that_can(
    project: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = hookline(capsys, "lock", "--pylock")
    assert code == 1
    assert "cannot write a pylock.toml, pip 25.1 can: python -m pip install --upgrade pip" in " ".join(said.split())
    assert (project.folder / "hookline.lock").exists()


def test_a_lock_that_cannot_be_written_is_an_error_that_names_it(
    project: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project.folder / "hookline.lock"
    path.mkdir()
    assert hookline(capsys, "lock") == (1, f"hookline: {path} cannot be written: Is a directory")
