"""Plugins that are really installed: a folder on the path, with the metadata that pip would write."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from hookline import PluginManager
from hookline.plugin_manager.discovery import FoundPlugin, ProjectPlugin, find_plugins
from hookline.plugin_manager.loading import PluginRecord, load_plugins
from hookline.plugin_manager.settings import Settings, read_settings

_numbers = itertools.count()


class Site:
    """A site-packages folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def install(
        self,
        name: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        requires: Sequence[str] = ("hookline-hookspecs>=0.1",),
        target: str = "Plugin",
    ) -> str:
        """Install a distribution with one plugin; returns the name of its module."""
        module = f"installed_plugin_{next(_numbers)}"
        distribution = distribution or f"test-{name}"
        header = "from dataclasses import dataclass\nfrom hookline_hookspecs import hookimpl\n"
        (self.folder / f"{module}.py").write_text(header + textwrap.dedent(source))
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        object_reference = f"{module}:{target}" if target else module
        (info / "entry_points.txt").write_text(f"[hookline]\n{name} = {object_reference}\n")
        self.names.add(name)
        return module

    def found(self, settings: Settings) -> list[FoundPlugin]:
        """What discovery finds here, without the plugins of the environment that the tests run in."""
        found = find_plugins(settings)
        return [plugin for plugin in found if plugin.name in self.names or isinstance(plugin, ProjectPlugin)]

    def load(self, settings: Settings | None = None) -> tuple[PluginManager, list[PluginRecord]]:
        manager, settings = PluginManager(), settings or read_settings(self.folder, environ={})
        return manager, load_plugins(manager, settings, self.found(settings))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path)
