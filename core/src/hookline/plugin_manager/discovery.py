"""Find plugins: the installed ones by entry point, and those of the project by the settings that name them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import importlib_metadata

from hookline.errors import PluginError
from hookline.importing import NotFoundError
from hookline.plugin_manager.compatibility import built_for, missing_import
from hookline.plugin_manager.settings import ProjectEntry, Settings, normalized
from hookline_hookspecs import PROJECT_NAME
from hookline_hookspecs.errors import describe_error

__all__ = [
    "PROJECT",
    "FoundPlugin",
    "InstalledPlugin",
    "ProjectPlugin",
    "find_plugins",
    "is_bridge",
]

PROJECT: Final = "project"
"""Takes the place of the distribution in `name@distribution`, for plugins of the project."""


@dataclass(frozen=True)
class InstalledPlugin:
    """An entry point in the group `hookline`. Finding it imports nothing."""

    name: str
    entry_point: importlib_metadata.EntryPoint | None
    """None if the metadata of the distribution cannot be read; `problem` says why."""
    distribution: str = ""
    version: str = ""
    dependencies: tuple[str, ...] = ()
    summary: str = ""
    problem: str = ""

    @property
    def origin(self) -> str:
        """The distribution and its version."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def recorded(self) -> dict[str, Any]:
        """What the config of a run records of it."""
        return {"distribution": self.distribution, "version": self.version}

    def __str__(self) -> str:
        return f"{self.name!r} ({self.origin})" if self.origin else repr(self.name)

    def load(self) -> Any:
        """Import what the entry point names."""
        if self.entry_point is None:
            raise PluginError(None, self.problem)
        try:
            return self.entry_point.load()
        except ImportError as error:
            raise missing_import(error) or error from error

    @property
    def built_for(self) -> str | None:
        """How the hookspecs that its distribution declares differ from the installed ones; None if they do not."""
        return built_for(self.distribution, self.dependencies)


@dataclass(frozen=True)
class ProjectPlugin:
    """A class, function or module of the project, named in the settings. Finding it imports nothing."""

    entry: ProjectEntry
    distribution: str = PROJECT
    version: str = ""
    summary: str = ""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def origin(self) -> str:
        """The module or file, and the setting that names it."""
        return f"{self.entry.reference}, by {self.entry.where}"

    @property
    def recorded(self) -> dict[str, Any]:
        """What the config of a run records of it: enough to load it again."""
        reference = self.entry.reference
        place = {"module": reference.module, "name": reference.attribute, "folder": str(reference.folder)}
        return {"load": place}

    def __str__(self) -> str:
        return f"{self.name!r} ({self.origin})"

    def load(self) -> Any:
        """Import it."""
        try:
            return self.entry.reference.load()
        except NotFoundError:
            raise
        except ImportError as error:
            raise missing_import(error) or error from error

    @property
    def built_for(self) -> None:
        """None: nothing is declared."""


FoundPlugin = InstalledPlugin | ProjectPlugin


def find_plugins(settings: Settings) -> list[FoundPlugin]:
    """The plugins of this environment and those that the settings load from the project, sorted by name."""
    installed = _installed_plugins()
    names = {plugin.name for plugin in installed}
    # What the resumed run loaded from a file may have been packaged since.
    own = [ProjectPlugin(entry) for entry in settings.loaded if not (entry.recorded and entry.name in names)]
    return sorted([*installed, *own], key=lambda plugin: (plugin.name, plugin.distribution))


def _installed_plugins() -> list[InstalledPlugin]:
    """The plugins of all distributions of this environment, sorted by name."""
    found: list[InstalledPlugin] = []
    seen: set[str] = set()
    for dist in importlib_metadata.distributions():
        name = _folder_of(dist).name.partition("-")[0]
        # As for imports, the first distribution of a name on the path wins.
        if not name or normalized(name) not in seen:
            seen.add(normalized(name))
            found += _installed_by(dist)
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution))


def is_bridge(name: str) -> bool:
    """Whether a distribution is a bridge to another trainer: named like a plugin's, and without entry points."""
    try:
        dist = importlib_metadata.distribution(f"{PROJECT_NAME}-{name}")
    except (importlib_metadata.PackageNotFoundError, ValueError):
        return False
    return not dist.entry_points.select(group=PROJECT_NAME)


def _read_metadata(dist: importlib_metadata.Distribution) -> tuple[str, str, tuple[str, ...], str]:
    """The name, version, dependencies and summary of a distribution, which are lines at the head of a file.

    The properties of `dist` parse the whole file by the `email` package, whose import alone takes a tenth of a command.
    """
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO")
    if text is None:
        raise FileNotFoundError("there is no METADATA in it")
    head = [line.partition(": ") for line in text.partition("\n\n")[0].splitlines()]
    found = {key: value for key, _, value in reversed(head)}
    dependencies = tuple(value for key, _, value in head if key == "Requires-Dist")
    return found["Name"], found["Version"], dependencies, found.get("Summary", "")


def _installed_by(dist: importlib_metadata.Distribution) -> list[InstalledPlugin]:
    """The plugins of one distribution. Most have none, and only the files of the others are parsed."""
    try:
        if f"[{PROJECT_NAME}]" not in (dist.read_text("entry_points.txt") or ""):
            return []
        own = dist.entry_points.select(group=PROJECT_NAME)
        return [InstalledPlugin(entry_point.name, entry_point, *_read_metadata(dist)) for entry_point in own]
    except Exception as error:
        folder = _folder_of(dist)
        try:
            text = (folder / "entry_points.txt").read_bytes()
        except OSError:
            text = b""
        if f"[{PROJECT_NAME}]".encode() not in text:
            return []  # broken, but without plugins
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        problem = f"the metadata in {folder} cannot be read: {describe_error(error)}"
        return [InstalledPlugin(name, None, distribution=name, version=version, problem=problem)]


def _folder_of(dist: importlib_metadata.Distribution) -> Path:
    """Where its metadata lies; an empty path if that is no folder."""
    return Path(str(getattr(dist, "_path", "")))
