"""`hookline new-plugin`: what it writes works at once, installed by pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from hookline.cli import main
from hookline.cli.new_plugin import KINDS, Kind

EVENTS = {
    "plugin": "on_epoch_end",
    "sink": "register_sinks",
    "environment": "register_environments",
    "engine": "register_engines",
    "verifier": "verify_episodes",
}
"""The event that a plugin of each kind implements."""


def run(*command: str, path: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=path.parent, timeout=600, check=False
    )


def test_a_new_plugin_of_each_kind_installs_is_discovered_and_passes_its_own_tests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    site, projects = tmp_path / "site", {kind: tmp_path / f"hookline-my-{kind}" for kind in get_args(Kind)}
    assert projects.keys() == KINDS.keys() == EVENTS.keys()
    for kind, project in projects.items():
        with pytest.raises(SystemExit) as ended:
            main(["new-plugin", f"my-{kind}", "--kind", kind, "--in", str(tmp_path)])
        assert not ended.value.code
        assert f"pytest {project}" in capsys.readouterr().out

    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    installed = run(*pip, *map(str, projects.values()), path=site)
    assert installed.returncode == 0, installed.stderr

    listing = json.loads(run(sys.executable, "-m", "hookline", "plugins", "--json", path=site).stdout)["plugins"]
    found = {plugin["name"]: plugin for plugin in listing}
    for kind, own in KINDS.items():
        plugin = found[f"{own.prefix}my-{kind}"]
        assert (plugin["state"], plugin["events"]) == ("active", [EVENTS[kind]]), plugin["reason"]

    # In one process: imports of the frameworks are most of the time.
    tests = [str(project / "tests") for project in projects.values()]
    tested = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, path=site)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "13 passed" in tested.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_metadata_names_it_a_plugin_and_has_a_workflow_for_tests_and_one_to_publish(
    tmp_path: Path, kind: Kind
) -> None:
    with pytest.raises(SystemExit):
        main(["new-plugin", "mine", "--kind", kind, "--in", str(tmp_path)])
    project = tomllib.loads((tmp_path / "hookline-mine" / "pyproject.toml").read_text())["project"]
    assert "hookline-plugin" in project["keywords"]
    assert not any("<" in requirement for requirement in project["dependencies"])
    publish = (tmp_path / "hookline-mine" / ".github" / "workflows" / "publish.yml").read_text()
    assert "id-token: write" in publish
    assert "pypa/gh-action-pypi-publish" in publish
    assert "password" not in publish
    tests = (tmp_path / "hookline-mine" / ".github" / "workflows" / "tests.yml").read_text()
    assert "python-version: ${{ matrix.python }}" in tests
    left = [file for file in (tmp_path / "hookline-mine").rglob("*") if "$" in file.name or file.suffix == ".in"]
    assert left == []


@pytest.mark.parametrize("name", ["Nan_Guard", "9lives", "trailing-", "two--dashes", ""])
def test_a_name_that_cannot_be_a_plugins_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new-plugin", name, "--in", str(tmp_path)])
    assert ended.value.code == 1
    assert f"{name!r} is not a plugin name: use lower-case letters, digits and dashes" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_already_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hookline-mine").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["new-plugin", "mine", "--in", str(tmp_path)])
    assert ended.value.code == 1
    assert "hookline-mine already exists" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["new-plugin", "mine", "--in", str(tmp_path / "file")])
    assert ended.value.code == 1
    assert (
        capsys.readouterr().err
        == f"hookline: {tmp_path / 'file' / 'hookline-mine'} cannot be written: Not a directory\n"
    )
