"""`hookline lock`: write what takes part in a run, or compare it with what was written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import importlib_metadata

from hookline import parsing
from hookline.errors import ConfigError, HooklineError
from hookline.plugin_manager.settings import read_settings

if TYPE_CHECKING:
    from hookline.plugin_manager.loading import PluginRecord

__all__ = ["lock"]


def lock(
    *,
    check: Annotated[bool, parsing.Parameter(negative="")] = False,
    pylock: Annotated[bool, parsing.Parameter(negative="")] = False,
    plugin: Annotated[tuple[str, ...], parsing.Parameter(name="-p", negative="")] = (),
) -> None:
    """Write name, version and hash of every plugin and framework that takes part to `hookline.lock`.

    A run in this folder, or in one below it, then says what differs; with `strict = true` it does not start.

    Parameters
    ----------
    check
        Write nothing, and print what differs from the lock. The exit code is 1 if anything does.
    pylock
        Also have pip write `pylock.toml` (PEP 751), from which the same versions can be installed. Needs pip 25.1.
    plugin
        Turn a plugin off (`-p no:NAME`) or on (`-p NAME`, `-p file.py:NAME`), as for a run.
    """
    from hookline.plugin_manager.loading import PluginLoader
    from hookline.plugin_manager.lock_file import LOCK_FILE, differences, find_lock, write_lock
    from hookline.plugin_manager.manager import PluginManager

    settings = read_settings(plugin_arguments=plugin)
    loader = PluginLoader(PluginManager(), settings)
    loader.prepare()
    if loader.faults:
        raise ConfigError(loader.faults)
    loader.register()
    loader.raise_faults()
    for record in loader.failed():
        raise HooklineError(f"plugin {record.found} {record.reason}. Repair it or turn it off, and lock then")
    path = find_lock(Path.cwd())
    if check:
        if path is None:
            raise HooklineError(f"there is no {LOCK_FILE} in this folder or above: write one by `hookline lock`")
        found = differences(path, loader.records)
        for difference in found:
            print(difference)
        sys.exit(bool(found))
    path = path or (settings.folder or Path.cwd()) / LOCK_FILE
    try:
        write_lock(path, loader.records)
    except OSError as error:
        raise HooklineError(f"{path} cannot be written: {error.strerror}") from error
    active = [record for record in loader.records if record.state == "active"]
    print(f"{path}: {len(active)} plugins")
    if pylock:
        print(_write_pylock(path.parent / "pylock.toml", active))


def _write_pylock(path: Path, records: list[PluginRecord]) -> Path:
    """Have pip resolve the installed versions of all that takes part, and all that they need, into a file."""
    from packaging.version import Version

    from hookline.plugin_manager.lock_file import fingerprints_of_packages

    try:
        pip = importlib_metadata.version("pip")
    except importlib_metadata.PackageNotFoundError:
        raise HooklineError(
            "a pylock.toml is written by pip, which is not installed here: python -m ensurepip, then "
            "python -m pip install --upgrade pip. hookline.lock is written"
        ) from None
    if Version(pip) < Version("25.1"):
        raise HooklineError(
            f"pip {pip} cannot write a pylock.toml, pip 25.1 can: python -m pip install --upgrade pip. "
            "hookline.lock is written"
        )
    names = {record.found.distribution for record in records if record.found.version}
    names |= fingerprints_of_packages().keys() - {"python"}
    requirements = [_requirement(importlib_metadata.distribution(name)) for name in sorted(names)]
    installed = [own for own in map(_requirement, importlib_metadata.distributions()) if not own.startswith("file:")]
    with NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write("\n".join(installed))
        constraints.flush()
        command = [sys.executable, "-m", "pip", "lock", "--quiet", "-c", constraints.name, "--output", str(path)]
        result = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise HooklineError(f"pip {pip} could not write {path}: {last}. hookline.lock is written")
    return path


def _requirement(distribution: importlib_metadata.Distribution) -> str:
    """The installed version of a distribution; for one that was installed from a folder, the folder."""
    origin = distribution.origin
    if origin is not None and str(origin.url).startswith("file:"):
        return str(origin.url)
    return f"{distribution.name}=={distribution.version}"
