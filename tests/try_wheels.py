"""Build every wheel and try them in empty environments: what users will install is what is tried.

    python tests/try_wheels.py hookspecs core plugins/metrics ...

The wheels go to `dist/`. Each promise about installing is then tried with pip, from that folder, several at a time:

- `hookline-hookspecs` alone brings nothing else
- `hookline lock --pylock` writes all that a run needs, with a pip that can
- everything together is found by `hookline plugins`, and brings in no framework
- each plugin's own tests pass with the test kit, and without torch, jax and mlx
- a plugin from `hookline new-plugin` installs beside them and passes its own tests
- each bridge's own tests pass in an environment of its own, with its trainer and the plugins but for trackers
- environments of gymnax, verifiers and openenv are played, the last two in a process with a virtual environment each
- with every other version of Python that the metadata names and this machine has, all of it installs, a loop of its own
  trains with all plugins, is killed and resumes bit for bit, and rollouts in JAX meet rewards in MLX
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / "dist"
FRAMEWORKS = {"torch", "jax", "mlx"}
TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
"""Plugins that only their own tests turn on, since they write outside a run's folder."""
MOST_AT_ONCE = 4
"""Trials with torch or JAX need a gigabyte or two each."""

Trial = Callable[[Path], None]
"""Gets an empty folder."""


class Environment:
    """An empty virtual environment, and what is done in it. It has no pip: that of the interpreter installs into it."""

    def __init__(self, folder: Path, interpreter: str = sys.executable) -> None:
        self.bin = folder / "bin"
        subprocess.run([interpreter, "-m", "venv", "--without-pip", str(folder)], check=True)
        self._pip = (interpreter, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check")

    def run(self, name: str, *arguments: str, cwd: Path, **options: Any) -> str:
        """Run a program of the environment; returns what it printed."""
        return run(str(self.bin / name), *arguments, cwd=cwd, **options)

    def install(self, *requirements: str, cwd: Path, constrained: bool = True) -> None:
        constraints = ("-c", str(ROOT / "constraints.txt")) if constrained else ()
        # Most modules of large packages are never imported, so that it takes longer to compile all.
        run(*self._pip, "install", "--quiet", "--no-compile", *constraints, *requirements, cwd=cwd)

    def installed(self, cwd: Path) -> set[str]:
        return {package["name"].lower() for package in json.loads(run(*self._pip, "list", "--format", "json", cwd=cwd))}


def run(
    *command: str,
    cwd: Path,
    status: int = 0,
    disable: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command, which must end with this status; returns what it printed."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"HOOKLINE_DISABLE": ",".join(disable), **(variables or {})}
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, check=False)
    if result.returncode != status:
        sys.exit(f"failed: {' '.join(command)}\n{result.stdout}\n{result.stderr}")
    return result.stdout


def build(projects: list[str]) -> dict[str, str]:
    """Build a wheel of each project; returns the wheels by the names of their distributions."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(WHEELS), *(str(ROOT / project) for project in projects)], check=True)
    # Installed by path, so that no other package of the same name can come in their place.
    return {wheel.name.split("-")[0].replace("_", "-"): str(wheel) for wheel in sorted(WHEELS.glob("*.whl"))}


def try_hookspecs_alone(folder: Path, wheels: dict[str, str]) -> None:
    environment = Environment(folder / "alone")
    environment.install(wheels["hookline-hookspecs"], cwd=folder)
    installed = environment.installed(folder)
    assert installed == {"hookline-hookspecs"}, f"hookline-hookspecs brings {installed}"
    environment.run("python", "-c", "import hookline_hookspecs; hookline_hookspecs.TrainerState()", cwd=folder)
    print("hookline-hookspecs alone: nothing else")


def try_pylock(folder: Path, wheels: dict[str, str]) -> None:
    environment = Environment(folder / "locked")
    names = ("hookline-hookspecs", "hookline", "hookline-status")
    environment.install(*(wheels[name] for name in names), cwd=folder)
    environment.install("pip>=25.1", cwd=folder, constrained=False)
    environment.run("hookline", "lock", "--pylock", cwd=folder)
    packages = tomllib.loads((folder / "pylock.toml").read_text(encoding="utf-8"))["packages"]
    locked = {package["name"] for package in packages}
    assert locked >= {*names, "pluggy", "httpcore"}, f"pylock.toml has only {locked}"
    print(f"hookline lock --pylock: {len(locked)} packages")


def try_everything(folder: Path, wheels: dict[str, str], projects: list[str]) -> None:
    environment = Environment(folder / "together")
    extras = {"hookline": "[testing]", "hookline-hookspecs": ""}
    with_testing = [f"{wheel}{extras.get(name, '[test]')}" for name, wheel in wheels.items()]
    environment.install(*with_testing, "hypothesis", "pytest-timeout", cwd=folder)
    unwanted = environment.installed(folder) & FRAMEWORKS
    assert not unwanted, f"the plugins bring {unwanted}"
    listing = json.loads(environment.run("hookline", "plugins", "--json", cwd=folder))
    states = {plugin["name"]: plugin["state"] for plugin in listing["plugins"]}
    assert states, "no plugin was found"
    assert set(states.values()) == {"active"}, f"not all plugins are active: {states}"
    print(f"hookline plugins: {', '.join(sorted(states))} are active")
    for project in projects:
        if project.startswith("plugins/"):
            try_tests(environment, ROOT / project / "tests", folder, disable=TRACKERS)
    environment.run("hookline", "new-plugin", "tried-out", cwd=folder)
    environment.install(str(folder / "hookline-tried-out"), cwd=folder)
    try_tests(environment, folder / "hookline-tried-out" / "tests", folder, disable=TRACKERS)


def try_bridge(folder: Path, wheels: dict[str, str], bridge: str, project: str) -> None:
    environment = Environment(folder / "bridge")
    # No test of a bridge needs trackers, and their packages are large.
    plugins = (wheel for name, wheel in wheels.items() if name.removeprefix("hookline-") not in TRACKERS)
    environment.install(*plugins, f"{bridge}[test]", "pytest-timeout", cwd=folder)
    try_tests(environment, ROOT / project / "tests", folder)


def try_environments(folder: Path, wheels: dict[str, str]) -> None:
    """The tests of hookline-environments that `make test` skips, for what they need."""
    pythons = {}
    for package in ("verifiers==0.4.0", "openenv==0.10.0"):
        name = package.partition("=")[0]
        own = Environment(folder / name)
        own.install(package, cwd=folder, constrained=False)
        pythons[f"HOOKLINE_TEST_{name.upper()}_PYTHON"] = str(own.bin / "python")
    environment = Environment(folder / "environments")
    names = ("hookline-hookspecs", "hookline", "hookline-environments")
    extras = {"hookline": "[jax,testing]", "hookline-environments": "[gymnax]"}
    # Without the constraints: gymnax needs an older Gymnasium.
    environment.install(
        *(wheels[name] + extras.get(name, "") for name in names), "pytest-timeout", cwd=folder, constrained=False
    )
    try_tests(environment, ROOT / "plugins" / "environments" / "tests", folder / "environments", variables=pythons)


def name_of(project: str) -> str:
    """The name of a project's distribution."""
    name: str = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    return name


def try_tests(environment: Environment, tests: Path, folder: Path, **options: Any) -> None:
    """Run tests from a copy, so that nothing of this repository is on their path."""
    copy = folder / "tests-of" / tests.parent.name
    shutil.copytree(tests, copy, ignore=shutil.ignore_patterns("__pycache__"))
    command = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy))
    output = environment.run(*command, cwd=copy, **options)
    print(f"tests of {tests.parent.name}: {output.splitlines()[-1]}")


def other_versions() -> list[str]:
    """The versions of Python that the metadata names, but for the one that runs this."""
    metadata = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8"))
    named = [name.rpartition(" ")[2] for name in metadata["project"]["classifiers"] if ":: Python :: 3." in name]
    return [version for version in named if version != f"{sys.version_info.major}.{sys.version_info.minor}"]


def find_interpreter(version: str) -> str | None:
    """An interpreter of this version, from PATH or pyenv. A shim of pyenv may be there without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    code = f"import pip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for interpreter in filter(None, found):
        if subprocess.run([interpreter, "-c", code], capture_output=True, check=False).returncode == 0:
            return interpreter
    return None


def try_other_version(folder: Path, wheels: dict[str, str], version: str) -> None:
    interpreter = find_interpreter(version)
    if interpreter is None:
        print(f"Python {version}: skipped, since there is no interpreter with pip on PATH or in pyenv")
        return
    environment = Environment(folder / version, interpreter)
    extras = {"hookline": "[jax,mlx,rewards]"}
    environment.install(*(wheel + extras.get(name, "") for name, wheel in wheels.items()), cwd=folder)
    listing = json.loads(environment.run("hookline", "plugins", "--json", cwd=folder))
    states = {plugin["name"]: plugin["state"] for plugin in listing["plugins"]}
    assert states, "no plugin was found"
    assert set(states.values()) == {"active"}, f"not all plugins are active: {states}"
    # The packages of trackers warn.
    settings = f"disable = {list(TRACKERS)}\n[plugins.checkpoint]\nevery = 2\n"
    (folder / "hookline.toml").write_text(settings, encoding="utf-8")
    # A warning is an error: what this version of Python deprecates is not used.
    loop = ("python", "-W", "error", str(ROOT / "tests" / "numpy_loop.py"))
    whole = environment.run(*loop, "whole", cwd=folder)
    environment.run(*loop, "killed", "--kill-in", "7", cwd=folder, status=-signal.SIGKILL)
    resumed = environment.run(*loop, "killed", "--resume", cwd=folder)
    assert whole.split()[0] == resumed.split()[0], f"{whole!r} when not killed, {resumed!r} when resumed"
    assert int(resumed.split()[1]) < int(whole.split()[1]), "the resumed run began anew"
    worker = "from hookline.rollout import RolloutWorker; RolloutWorker().run(steps=2)"
    environment.run("python", "-W", "error", "-c", worker, cwd=folder)
    example = ROOT / "examples" / "rollout_integration_example.py"
    environment.run("python", "-W", "error", str(example), cwd=folder)
    print(f"Python {version}: trains with {len(states)} plugins, is killed, resumes; rollouts in JAX, rewards in MLX")


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job, and then by all tests too
    projects = sys.argv[1:]
    wheels = build(projects)
    assert len(wheels) == len(projects), f"built {list(wheels)} from {projects}"
    print(f"built {', '.join(wheels)}")
    bridges = [project for project in projects if project.startswith("bridges/")]
    others = {name: wheel for name, wheel in wheels.items() if name not in map(name_of, bridges)}
    small = {name: wheel for name, wheel in others.items() if name != "hookline-ray"}  # Ray is large, and is tried once
    trials: list[Trial] = [
        lambda folder: try_everything(folder, others, projects),
        *(
            partial(try_bridge, wheels=small, bridge=wheels[name_of(project)], project=project)
            for project in reversed(bridges)
        ),
        lambda folder: try_environments(folder, others),
        *(partial(try_other_version, wheels=small, version=version) for version in other_versions()),
        lambda folder: try_pylock(folder, wheels),
        lambda folder: try_hookspecs_alone(folder, wheels),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_AT_ONCE)) as at_once,
    ):
        begun = [at_once.submit(trial, empty_folder(Path(folder), number)) for number, trial in enumerate(trials)]
        try:
            for ended in as_completed(begun):
                ended.result()
        finally:
            at_once.shutdown(cancel_futures=True)


def empty_folder(parent: Path, number: int) -> Path:
    folder = parent / f"trial-{number}"
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
