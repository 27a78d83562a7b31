"""`hookline runs --diff A B`: what differs between two runs, by what their `config.json` recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hookline_hookspecs import HooklineError
from hookline_hookspecs.redaction import redact

__all__ = ["diff_lines", "diff_runs"]

ABSENT: Final = "-"
WHICH_RUN: Final = ("resume", "run_dir")
"""Fields of the trainer's config that say which run it is, not what it does."""

Differences = dict[str, tuple[str, str]]
"""The values of both runs as text, by name."""


def diff_runs(first: Path, second: Path) -> dict[str, Differences]:
    """What differs: the config of the run, the plugins with their options, and versions."""
    configs = [redact(_read(folder)) for folder in (first, second)]
    parts: dict[str, list[dict[str, str]]] = {"config": [], "plugins": [], "versions": []}
    in_both = set.intersection(*(set(config.get("plugins", {})) for config in configs))
    for config in configs:
        plugins, packages = config.pop("plugins", {}), config.pop("packages", {})
        config.pop("disabled", None)  # the same is said by the plugins that are there
        trainer = config.get("trainer")
        if isinstance(trainer, dict):
            for key in WHICH_RUN:
                trainer.pop(key, None)
        parts["config"].append(dict(_flat(config)))
        parts["plugins"].append(dict(_settings_of(plugins)))
        compared = {name: own for name, own in plugins.items() if name in in_both}
        parts["versions"].append(dict(_versions_of(compared, packages)))
    return {part: _differing(*of_both) for part, of_both in parts.items()}


def diff_lines(first: str, second: str, found: Mapping[str, Differences]) -> Iterator[str]:
    """The differences in aligned columns. Hashes are shown by their first digits."""
    if not any(found.values()):
        yield f"{first} and {second} have the same config, plugins and versions"
        return
    rows = [("", first, second)]
    for part, differing in found.items():
        if differing:
            rows.append((part, "", ""))
            rows += [(f"  {name}", *values) for name, values in differing.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, one, other in rows:
        yield f"{name.ljust(widths[0])}  {one.ljust(widths[1])}  {other}".rstrip()


def _read(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HooklineError(f"{folder} has no config.json, so it cannot be compared") from None
    except (OSError, RecursionError, ValueError) as error:
        raise HooklineError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise HooklineError(f"{folder / 'config.json'} is not the config of a run")
    return config


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False)


def _settings_of(plugins: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, own in plugins.items():
        place = own.get("load")
        yield name, f"{place['module']}:{place['name']}" if place else own.get("distribution", "installed")
        yield from _flat(own.get("options", {}), f"{name}.")


def _versions_of(plugins: Mapping[str, Any], packages: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, own in {**packages, **{f"plugin {name}": own for name, own in plugins.items()}}.items():
        code = str(own.get("hash", "")).removeprefix("sha256:")[:12]
        yield name, " ".join(filter(None, [own.get("version"), code and f"({code})"]))


def _differing(first: Mapping[str, str], second: Mapping[str, str]) -> Differences:
    names = [*first, *(name for name in second if name not in first)]
    values = {name: (first.get(name, ABSENT), second.get(name, ABSENT)) for name in names}
    # The options of a plugin that one run does not have say nothing more.
    missing = {name for name, own in values.items() if ABSENT in own}
    return {
        name: own
        for name, own in values.items()
        if own[0] != own[1] and not (ABSENT in own and name.rpartition(".")[0] in missing)
    }
