"""`hookline new-plugin`: what it writes works at once, installed by pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.cli import main


def run(*command: str, path: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=path.parent, timeout=500, check=False
    )


def test_a_new_plugin_installs_is_discovered_and_passes_its_own_tests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new-plugin", "loss-log", "--in", str(tmp_path)])
    assert not ended.value.code
    project, site = tmp_path / "hookline-loss-log", tmp_path / "site"
    assert f"pytest {project}" in capsys.readouterr().out

    pip = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    )
    installed = run(*pip, str(project), path=site)
    assert installed.returncode == 0, installed.stderr

    listing = run(sys.executable, "-m", "hookline", "plugins", "--json", path=site)
    (plugin,) = [p for p in json.loads(listing.stdout)["plugins"] if p["name"] == "loss-log"]
    assert (plugin["state"], plugin["events"], plugin["options"]) == ("active", ["on_epoch_end"], {"prefix": "losses"})

    tested = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project), path=site)
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr


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
