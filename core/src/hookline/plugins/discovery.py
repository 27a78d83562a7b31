"""Which plugins are installed, which of them the user wants, and how they get into a manager."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hookline.plugins.construction import Blueprint
from hookline.plugins.errors import ConfigError, ConfigFault, HooklineError, OrderError, PluginError, did_you_mean
from hookline.plugins.manager import PluginManager
from hookline.plugins.ordering import Constraints, constraints_of, sort_by_constraints
from hookline.plugins.settings import Settings, read_settings
from hookline_hookspecs import PROJECT_NAME

__all__ = ["InstalledPlugin", "PluginLoader", "PluginRecord", "installed_plugins", "load_plugins", "open_plugins"]

logger = logging.getLogger("hookline.plugins")

HOOKSPECS = "hookline-hookspecs"


@dataclass(frozen=True)
class InstalledPlugin:
    """An entry point in the group `hookline`; nothing is imported to know it."""

    name: str
    entry_point: importlib_metadata.EntryPoint
    distribution: str = ""
    version: str = ""
    dependencies: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The distribution and its version."""
        return f"{self.distribution} {self.version}".strip()

    def __str__(self) -> str:
        return f"{self.name!r} ({self.origin})" if self.origin else repr(self.name)

    def check_hookspecs(self) -> None:
        """Raise when the plugin's distribution was built for other hookspecs than those installed."""
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


@dataclass
class PluginRecord:
    """What became of an installed plugin."""

    installed: InstalledPlugin
    state: Literal["active", "disabled", "failed"] = "active"
    reason: str = ""
    """Why it is not active."""
    error: BaseException | None = None
    constraints: Constraints = field(default_factory=Constraints)
    options: Any = None
    """Its validated options, an instance of the model that it declares."""

    @property
    def name(self) -> str:
        return self.installed.name

    def fail(self, what: str, error: BaseException) -> None:
        self.state, self.error = "failed", error
        self.reason = (
            f"{what}: {error}" if isinstance(error, HooklineError) else f"{what}: {type(error).__name__}: {error}"
        )


def installed_plugins() -> list[InstalledPlugin]:
    """All plugins of this environment, sorted by name."""
    found = []
    for entry_point in importlib_metadata.entry_points(group=PROJECT_NAME):
        dist = entry_point.dist
        found.append(
            InstalledPlugin(
                name=entry_point.name,
                entry_point=entry_point,
                distribution=dist.name if dist else "",
                version=dist.version if dist else "",
                dependencies=tuple(dist.requires or ()) if dist else (),
            )
        )
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution))


def open_plugins(*, rank: int = 0, settings: Settings | None = None) -> PluginManager:
    """A manager with the installed plugins that the settings want (default: those of this folder and environment).

    Use it as `with open_plugins() as manager:`, so that background work is done at the end.
    """
    settings = read_settings() if settings is None else settings
    manager = PluginManager(
        rank=rank, background_capacity=settings.background_capacity, drain_seconds=settings.drain_seconds
    )
    load_plugins(manager, settings)
    return manager


def load_plugins(
    manager: PluginManager, settings: Settings | None = None, installed: Sequence[InstalledPlugin] | None = None
) -> list[PluginRecord]:
    """Import, configure and register the installed plugins that the settings want.

    Raises `ConfigError` with all that is wrong in the settings, and `OrderError` for an order that cannot be had.
    A plugin that cannot be imported or made is left out, reported in its record and in the log; with
    `strict = true` it is an error.
    """
    loader = PluginLoader(manager, read_settings() if settings is None else settings, installed)
    loader.prepare()
    if loader.faults:
        raise ConfigError(loader.faults)
    loader.register()
    return loader.records


class PluginLoader:
    """The steps from installed plugins to registered ones. `prepare` can be used alone, to show what would be."""

    def __init__(
        self, manager: PluginManager, settings: Settings, installed: Sequence[InstalledPlugin] | None = None
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.records = [PluginRecord(plugin) for plugin in (installed_plugins() if installed is None else installed)]
        self.faults: list[ConfigFault] = list(settings.faults)
        self._blueprints: dict[str, Blueprint] = {}
        self._plugins: dict[str, Any] = {}

    @cached_property
    def _names(self) -> set[str]:
        return {record.name for record in self.records}

    def prepare(self) -> None:
        """Decide what is wanted, import it, validate its options and make it; collect faults on the way."""
        self._check_mentions()
        self._apply_toggles()
        self._check_duplicates()
        for record in self._active():
            self._import(record)
        for record in self._active():
            self._configure(record)
        self._check_required()
        if not self.faults:
            for record in self._active():
                self._make(record)

    def _active(self) -> list[PluginRecord]:
        return [record for record in self.records if record.state == "active"]

    def _check_mentions(self) -> None:
        for name, where in self.settings.mentions:
            if name not in self._names:
                problem = f"no installed plugin is called {name!r}{did_you_mean(name, self._names)}"
                self.faults.append(ConfigFault(where, problem))

    def _apply_toggles(self) -> None:
        allowed = self.settings.allowed
        for record in self.records:
            if record.name in self.settings.disabled:
                record.state, record.reason = "disabled", f"by {self.settings.disabled[record.name]}"
            elif allowed is not None and record.name not in allowed:
                where = next(iter(allowed.values()), "an empty allow-list")
                record.state, record.reason = "disabled", f"not among those allowed by {where}"

    def _check_duplicates(self) -> None:
        by_name: dict[str, PluginRecord] = {}
        for record in self._active():
            other = by_name.setdefault(record.name, record)
            if other is not record:
                problem = (
                    f"two plugins go by this name, from {other.installed.distribution} {other.installed.version} and "
                    f"{record.installed.distribution} {record.installed.version}: uninstall or disable one"
                )
                self.faults.append(ConfigFault(f"plugin {record.name!r}", problem))

    def _import(self, record: PluginRecord) -> None:
        try:
            record.installed.check_hookspecs()
            self._blueprints[record.name] = Blueprint.of(record.name, record.installed.entry_point.load())
        except (Exception, SystemExit) as error:
            record.fail("cannot be used" if isinstance(error, PluginError) else "cannot be imported", error)

    def _configure(self, record: PluginRecord) -> None:
        blueprint = self._blueprints[record.name]
        self.faults += blueprint.read_options(self.settings)
        record.options = blueprint.options
        try:
            record.constraints = constraints_of(blueprint.target, record.name)
        except PluginError as error:
            record.fail("cannot be used", error)

    def _check_required(self) -> None:
        records = {canonicalize_name(record.name): record for record in self.records}
        for requirement, where in self.settings.required:
            record = records.get(canonicalize_name(requirement.name))
            if record is None:
                hint = did_you_mean(requirement.name, self._names)
                problem = f"plugin {requirement.name!r} is required, but not installed{hint}"
            elif record.state != "active":
                problem = f"plugin {requirement.name!r} is required, but it is {record.state}: {record.reason}"
            elif not requirement.specifier.contains(record.installed.version, prereleases=True):
                problem = f"plugin {str(requirement)!r} is required, but {record.installed.version} is installed"
            else:
                continue
            self.faults.append(ConfigFault(where, problem))

    def _make(self, record: PluginRecord) -> None:
        try:
            self._plugins[record.name] = self._blueprints[record.name].build(self.manager.emit)
        except (Exception, SystemExit) as error:
            record.fail("cannot be made", error)

    def register(self) -> None:
        """Register what `prepare` has made, those that others require before them."""
        self.manager.installed = self.records
        overrides = {}
        for record in self._active():
            overrides[record.name], faults = self._blueprints[record.name].overrides(
                self.settings, record.installed.origin, *self._schedules(self._plugins[record.name])
            )
            self.faults += faults
        if self.faults:
            raise ConfigError(self.faults)
        constraints = {record.name: record.constraints for record in self._active()}
        self._check_requires(constraints)
        sort_by_constraints(list(constraints), constraints)  # a cycle in what plugins ask for, whoever comes first
        in_turn = {name: Constraints(after=own.requires) for name, own in constraints.items()}
        by_name = {record.name: record for record in self._active()}
        for name in sort_by_constraints(list(in_turn), in_turn):
            self._register(by_name[name], overrides[name])
        self._report()

    def _schedules(self, plugin: Any) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        schedules = {}
        for attribute in dir(plugin):
            options: Mapping[str, Any] | None = self.manager.parse_hookimpl_opts(plugin, attribute)
            if options is not None:
                schedules[options.get("specname") or attribute] = options.get("schedule")
        return schedules, {name: event.clock for name, event in self.manager.events.items()}

    def _check_requires(self, constraints: Mapping[str, Constraints]) -> None:
        for name, own in constraints.items():
            for required in own.requires:
                if required not in constraints:
                    record = next((record for record in self.records if record.name == required), None)
                    why = (
                        f"{record.state}: {record.reason}"
                        if record
                        else f"not installed{did_you_mean(required, self._names)}"
                    )
                    raise OrderError(None, f"plugin {name!r} requires {required!r}, which is {why}")

    def _register(self, record: PluginRecord, overrides: Any) -> None:
        try:
            self.manager.register(self._plugins[record.name], record.name, overrides=overrides)
        except OrderError:
            raise
        except PluginError as error:
            record.fail("cannot be used", error)

    def _report(self) -> None:
        failed = [record for record in self.records if record.state == "failed"]
        if failed and self.settings.strict:
            listing = "\n".join(f"  plugin {record.installed} {record.reason}" for record in failed)
            raise PluginError(None, f"plugins have failed, and strict = true:\n{listing}") from failed[0].error
        for record in failed:
            logger.error("plugin %s %s; it is left out", record.installed, record.reason)
