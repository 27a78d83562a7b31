"""`hookline.lock`: the plugins and packages that take part, with version and hash, written by `hookline lock`.

    [plugins.checkpoint]
    distribution = "hookline-checkpoint"
    version = "0.1.0"
    hash = "sha256:..."

    [packages.torch]
    version = "2.13.0"
    hash = "sha256:..."

It says what took part, and a run compares it with what is installed. It does not say what to install: that is what
`pylock.toml` is for, which pip writes.

The hash of a plugin is over the files of its package as they are now, so an editable install or an edit by hand shows.
Frameworks have gigabytes of files; their hash is over the hashes that pip recorded when it installed them.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import importlib_metadata

from hookline.errors import HooklineError
from hookline.plugin_manager.discovery import InstalledPlugin
from hookline.plugin_manager.loading import PluginRecord
from hookline_hookspecs.files import write_atomically

__all__ = ["LOCK_FILE", "differences", "find_lock", "fingerprint_of_plugin", "fingerprints_of_packages", "write_lock"]


LOCK_FILE: Final = "hookline.lock"
HEADING: Final = "# What takes part in the runs of this project. Written by `hookline lock`, compared by every run.\n"

OWN: Final = ("hookline", "hookline-hookspecs")
FRAMEWORKS: Final = (
    "gymnasium", "jax", "jaxlib", "lightning", "mlx", "mlx-lm", "numpy", "peft", "ray", "stable-baselines3",
    "tokenizers", "torch", "transformers", "trl",
)  # fmt: skip
"""The frameworks that a run may use. Those that are installed take part."""


def fingerprint_of_plugin(record: PluginRecord) -> dict[str, Any]:
    """Where a loaded plugin comes from, its version, and the hash of its code."""
    found = record.found
    if isinstance(found, InstalledPlugin):
        assert found.entry_point is not None, "an active plugin has an entry point"
        return {**found.recorded, "hash": _hash_of_package(found.entry_point.module.partition(".")[0])}
    reference = found.entry.reference
    if reference.file is not None:
        return {**found.recorded, "hash": _hash_of_files([reference.file], reference.file.parent)}
    return {**found.recorded, "hash": _hash_of_package(reference.module.partition(".")[0], "*.py")}


@cache
def fingerprints_of_packages() -> dict[str, dict[str, str]]:
    """Version and hash of Hookline and of the installed frameworks, and the version of Python, by name."""
    found = {"python": {"version": platform.python_version()}}
    for name in (*OWN, *FRAMEWORKS):
        try:
            distribution = importlib_metadata.distribution(name)
        except importlib_metadata.PackageNotFoundError:
            continue
        own = _hash_of_package(name.replace("-", "_")) if name in OWN else _recorded_hash(distribution)
        found[name] = {"version": distribution.version, "hash": own}
    return found


@cache
def _hash_of_package(name: str, pattern: str = "*") -> str:
    """The hash of the files of an imported package, or of the file of an imported module.

    :param pattern: which files. The package of a project may have a run's folder in it.
    """
    module: ModuleType = sys.modules[name]
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    if not folders:
        return _hash_of_files([Path(str(module.__file__))], Path(str(module.__file__)).parent)
    files = [file for file in sorted(folders[0].rglob(pattern)) if file.is_file() and "__pycache__" not in file.parts]
    return _hash_of_files(files, folders[0])


def _hash_of_files(files: Sequence[Path], folder: Path) -> str:
    return _hash_of_lines(
        f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files
    )


def _recorded_hash(distribution: importlib_metadata.Distribution) -> str:
    """The hash of a wheel's own files, by the hashes that its installer recorded. Empty if it recorded none."""
    record = distribution.read_text("RECORD") or ""
    own = [line for line in record.splitlines() if not line.startswith("..") and ".dist-info/" not in line]
    return _hash_of_lines(sorted(line for line in own if "__pycache__" not in line)) if own else ""


def _hash_of_lines(lines: Iterable[str]) -> str:
    return f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def find_lock(folder: Path) -> Path | None:
    """The lock of a folder, or of the nearest of its parents."""
    return next((place / LOCK_FILE for place in (folder, *folder.parents) if (place / LOCK_FILE).is_file()), None)


def write_lock(path: Path, records: Iterable[PluginRecord]) -> None:
    """Write what takes part now."""
    lines = [HEADING]
    for heading, entries in (("plugins", _plugins(records, path.parent)), ("packages", fingerprints_of_packages())):
        for name, entry in entries.items():
            values = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
            lines += [f"[{heading}.{name}]", *values, ""]
    write_atomically(path, "\n".join(lines))


def differences(path: Path, records: Sequence[PluginRecord]) -> list[str]:
    """How what takes part now differs from a lock, in a sentence each."""
    try:
        locked = tomllib.loads(path.read_text(encoding="utf-8"))
        plugins, packages = dict(locked["plugins"]), dict(locked["packages"])
    except (OSError, ValueError, LookupError) as error:
        raise HooklineError(f"{path} cannot be read: {error}. Write it again by `hookline lock`") from error
    installed = _plugins(records, path.parent)
    for record in records:
        if record.state != "active":
            plugins.pop(record.name, None)  # turned off for this run, or reported as failed
    return [
        *_compare("plugin ", plugins, installed),
        *_compare("", packages, fingerprints_of_packages()),
    ]


def _plugins(records: Iterable[PluginRecord], folder: Path) -> dict[str, dict[str, str]]:
    """The fingerprints of the active plugins. A file or module of the project is relative to the lock, if it can be."""
    entries: dict[str, dict[str, str]] = {}
    for record in records:
        if record.state == "active":
            fingerprint = fingerprint_of_plugin(record)
            place = fingerprint.pop("load", None)
            if place is not None:
                fingerprint = {"load": _shown(place, folder), **fingerprint}
            entries[record.name] = fingerprint
    return entries


def _shown(place: Mapping[str, str], folder: Path) -> str:
    module = place["module"]
    if module.endswith(".py"):
        file = Path(place["folder"]) / module
        module = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)
    return f"{module}:{place['name']}" if place["name"] else module


def _compare(what: str, locked: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(locked.keys() | now.keys()):
        shown = f"{what}{name!r}" if what else name
        if name not in now:
            missing = "not loaded" if "load" in locked[name] else "not installed"
            yield f"{shown} is locked ({_origin(locked[name])}), but is {missing}"
        elif name not in locked:
            yield f"{shown} ({_origin(now[name])}) is not locked"
        elif _origin(locked[name]) != _origin(now[name]):
            yield f"{shown} is {_origin(now[name])}, and {_origin(locked[name])} is locked"
        elif locked[name].get("hash") != now[name].get("hash"):
            yield f"{shown} ({_origin(now[name])}) has other code than the locked one"


def _origin(entry: Mapping[str, Any]) -> str:
    return entry.get("load") or f"{entry.get('distribution', '')} {entry.get('version', '')}".strip()
