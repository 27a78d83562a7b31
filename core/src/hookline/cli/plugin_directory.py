"""The directory of plugins that can be installed, from `plugins.toml`. It is also `docs/plugins.toml`, by a link."""

from __future__ import annotations

import itertools
import tomllib
from importlib import resources
from typing import NamedTuple

import importlib_metadata

__all__ = ["AvailablePlugin", "available_plugins", "directory_as_markdown", "directory_rows"]

HEADINGS = {
    "plugin": "Plugins",
    "sink": "Trackers and other places for metrics",
    "environment": "Environments",
    "engine": "Engines that generate text",
    "verifier": "Verifiers of responses",
    "bridge": "Bridges to trainers of other libraries",
}


class AvailablePlugin(NamedTuple):
    """A distribution of the directory."""

    name: str
    kind: str
    plugins: list[str]
    """Its entry points."""
    summary: str
    home: str
    """A URL, or a path in the repository."""


def available_plugins() -> list[AvailablePlugin]:
    """The directory, in its own order, by kind."""
    text = resources.files(__package__).joinpath("plugins.toml").read_text(encoding="utf-8")
    entries = [AvailablePlugin(**entry) for entry in tomllib.loads(text)["plugin"]]
    return sorted(entries, key=lambda entry: list(HEADINGS).index(entry.kind))


def directory_rows() -> list[tuple[str, str, str, str]]:
    """Name, kind, installed version and summary of each."""
    return [(own.name, own.kind, _installed_version(own.name) or "-", own.summary) for own in available_plugins()]


def directory_as_markdown() -> str:
    """The directory as a page of the documentation."""
    lines = [
        "# Directory of plugins",
        "",
        "What can be installed. `hookline plugins --available` shows the same in a terminal, with what is installed.",
        "This page is generated from [plugins.toml](plugins.toml) by `make docs`; add yours there.",
        "`hookline new-plugin` writes a new one.",
    ]
    for kind, entries in itertools.groupby(available_plugins(), key=lambda entry: entry.kind):
        lines += ["", f"## {HEADINGS[kind]}", "", "| install | turned on and off as | what it does |", "|---|---|---|"]
        for own in entries:
            home = own.home if "://" in own.home else f"../{own.home}"
            names = ", ".join(f"`{name}`" for name in own.plugins) or "-"
            lines.append(f"| [`{own.name}`]({home}) | {names} | {own.summary} |")
    return "\n".join(lines)


def _installed_version(name: str) -> str | None:
    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return None
