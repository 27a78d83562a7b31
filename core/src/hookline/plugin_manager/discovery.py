"""Find plugins: the installed ones by entry point, and those of the project by the settings that name them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hookline.errors import PluginError
from hookline.plugin_manager.settings import ProjectEntry, Settings
from hookline_hookspecs import PROJECT_NAME
from hookline_hookspecs.errors import describe_error

__all__ = [
    "PROJECT",
    "FoundPlugin",
    "InstalledPlugin",
    "ProjectPlugin",
    "_installed_plugins",
    "find_plugins",
    "is_bridge",
]

HOOKSPECS: Final = "hookline-hookspecs"

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
        self._check_hookspecs()
        return self.entry_point.load()

    def _check_hookspecs(self) -> None:
        """Raise if the plugin's distribution requires another version of the hookspecs."""
        for text in self.dependencies:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if canonicalize_name(requirement.name) == HOOKSPECS and requirement.marker is None:
                installed = importlib_metadata.version(HOOKSPECS)
                if not requirement.specifier.contains(installed, prereleases=True):
                    raise PluginError(
                        None,
                        f"it was built for {HOOKSPECS}{requirement.specifier}, but {installed} is installed: "
                        f"upgrade {self.distribution} or {HOOKSPECS}",
                    )


@dataclass(frozen=True)
class ProjectPlugin:
    """A class, function or module of the project, named in the settings. Finding it imports nothing."""

    entry: ProjectEntry
    distribution: str = PROJECT
    version: str = ""

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
        return self.entry.reference.load()


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
    try:
        found += map(_installed, importlib_metadata.entry_points(group=PROJECT_NAME))
    except Exception:
        # One distribution with broken metadata makes the whole query fail: read them one by one.
        found = _installed_one_by_one()
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution))


def is_bridge(name: str) -> bool:
    """Whether a distribution is a bridge to another trainer: named like a plugin's, and without entry points."""
    try:
        dist = importlib_metadata.distribution(f"{PROJECT_NAME}-{name}")
    except (importlib_metadata.PackageNotFoundError, ValueError):
        return False
    return not dist.entry_points.select(group=PROJECT_NAME)


def _installed(entry_point: importlib_metadata.EntryPoint) -> InstalledPlugin:
    dist = entry_point.dist
    return InstalledPlugin(
        name=entry_point.name,
        entry_point=entry_point,
        distribution=dist.name if dist else "",
        version=dist.version if dist else "",
        dependencies=tuple(dist.requires or ()) if dist else (),
    )


def _installed_one_by_one() -> list[InstalledPlugin]:
    found: dict[str, list[InstalledPlugin]] = {}
    for dist in importlib_metadata.distributions():
        plugins = _installed_by(dist)
        if plugins:
            # As for imports, the first distribution of a name on the path wins.
            found.setdefault(canonicalize_name(plugins[0].distribution), plugins)
    return [plugin for plugins in found.values() for plugin in plugins]


def _installed_by(dist: Any) -> list[InstalledPlugin]:
    try:
        return [_installed(entry_point) for entry_point in dist.entry_points.select(group=PROJECT_NAME)]
    except Exception as error:
        folder = Path(str(getattr(dist, "_path", "")))
        try:
            text = (folder / "entry_points.txt").read_bytes()
        except OSError:
            text = b""
        if f"[{PROJECT_NAME}]".encode() not in text:
            return []  # broken, but without plugins
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        problem = f"the metadata in {folder} cannot be read: {describe_error(error)}"
        return [InstalledPlugin(name, None, distribution=name, version=version, problem=problem)]
