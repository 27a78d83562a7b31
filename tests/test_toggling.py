"""Plugins come and go by pip, by settings and for one command; each changes the next run, and nothing else of it.

In a virtual environment of its own, with wheels that pip installs and uninstalls. What the wheels depend on is lent by
the environment that runs the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("flit_core")

ROOT = Path(__file__).parents[1]
PROJECTS = [
    *("hookspecs", "core", "plugins/metrics", "plugins/checkpoint", "plugins/evaluation", "plugins/status"),
    *("plugins/verifiers", "examples/third_party_plugin"),
]
FILES = {
    "metrics": {"stats.sqlite", "heartbeat", "report.html"},
    "checkpoint": {"checkpoints"},
    "status": {"status.json"},
}
"""What each plugin leaves in the folder of a supervised run."""


class Environment:
    """A virtual environment, and a folder to run in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self._bin = folder / "venv" / "bin"
        venv.create(folder / "venv", with_pip=True)
        _lend_dependencies(folder / "venv")

    def run(self, *command: str) -> str:
        result = subprocess.run(
            [str(self._bin / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name != "HOOKLINE_DISABLE"},
            timeout=500,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def train(self, name: str, *arguments: str) -> set[str]:
        """The files that a run leaves."""
        self.run("hookline", "train", "addition", "--epochs", "1", "--run-dir", name, *arguments)
        return {path.name for path in (self.folder / name).iterdir()}

    def plugins(self, name: str) -> dict[str, Any]:
        """What a run has recorded of its plugins."""
        recorded: dict[str, Any] = json.loads((self.folder / name / "config.json").read_text())["plugins"]
        return recorded

    def weights(self, name: str) -> bytes:
        (saved,) = self.folder.glob(f"{name}/checkpoints/*/policy.safetensors")
        return saved.read_bytes()


def _lend_dependencies(environment: Path) -> None:
    """Have all packages found that are installed here, but for ours."""
    lent = environment / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(("hookline", "pip")) and entry.suffix != ".pth":
            (lent / entry.name).symlink_to(entry)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "lent.pth").write_text(f"{lent}\n")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("toggling")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    projects = [str(ROOT / project) for project in PROJECTS]
    subprocess.run([*build, "--wheel-dir", str(folder / "wheels"), *projects], check=True, capture_output=True)
    environment = Environment(folder)
    wheels = [str(wheel) for wheel in sorted((folder / "wheels").glob("*.whl"))]
    assert len(wheels) == len(PROJECTS)
    environment.run("pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", *wheels)
    return environment


def test_toggling_a_plugin_changes_the_next_run_and_nothing_else(environment: Environment) -> None:
    listing = json.loads(environment.run("hookline", "plugins", "--json"))["plugins"]
    active = {plugin["name"] for plugin in listing if plugin["state"] == "active"}
    assert active >= {"metrics", "checkpoint", "evaluation", "status", "verify-length", "nan-guard"}

    everything = environment.train("all")
    assert everything >= set().union(*FILES.values())
    # A third party's plugin takes part by being installed.
    recorded = environment.plugins("all")["nan-guard"]
    assert (recorded["distribution"], recorded["version"]) == ("hookline-nan-guard", "1.0.0")
    assert recorded["options"] == {"patience": 3}

    # For one command. The runs after it have checkpoints again.
    assert environment.train("one-command", "-p", "no:checkpoint") == everything - FILES["checkpoint"]

    # In the settings. The run after it has metrics again.
    settings = environment.folder / "pyproject.toml"
    settings.write_text('[tool.hookline]\ndisable = ["metrics"]\n')
    assert environment.train("by-settings") == everything - FILES["metrics"]
    settings.unlink()

    # By pip.
    environment.run("pip", "uninstall", "--yes", "--quiet", "hookline-status", "hookline-nan-guard")
    assert environment.train("uninstalled") == everything - FILES["status"]
    assert "nan-guard" not in environment.plugins("uninstalled")

    for name in ("by-settings", "uninstalled"):
        assert environment.weights(name) == environment.weights("all")
