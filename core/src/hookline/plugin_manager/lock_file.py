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
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hookline.errors import HooklineError
from hookline.plugin_manager.fingerprints import fingerprint_of_plugin, fingerprints_of_packages
from hookline.plugin_manager.loading import PluginRecord
from hookline_hookspecs.files import write_atomically

__all__ = ["LOCK_FILE", "differences", "find_lock", "write_lock"]

LOCK_FILE: Final = "hookline.lock"
HEADING: Final = "# What takes part in the runs of this project. Written by `hookline lock`, compared by every run.\n"


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
