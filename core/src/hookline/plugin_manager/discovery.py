"""Find the installed plugins by entry point, and load those that the settings enable into a manager."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hookline.errors import (
    ConfigError,
    ConfigFault,
    HooklineError,
    OrderError,
    PluginError,
    did_you_mean,
)
from hookline.plugin_manager.construction import Blueprint
from hookline.plugin_manager.faults import Interruption
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline.plugin_manager.ordering import Constraints, constraints_of, sort_by_constraints
from hookline.plugin_manager.settings import Settings, read_settings
from hookline_hookspecs import PROJECT_NAME
from hookline_hookspecs.errors import describe_error, error_message
from hookline_hookspecs.redaction import remember_secrets

__all__ = ["InstalledPlugin", "PluginLoader", "PluginRecord", "installed_plugins", "load_plugins", "open_plugins"]

logger = logging.getLogger("hookline.plugins")

HOOKSPECS = "hookline-hookspecs"


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


@dataclass
class PluginRecord:
    """The state of an installed plugin after loading."""

    installed: InstalledPlugin
    state: Literal["active", "disabled", "failed"] = "active"
    reason: str = ""
    """Why it is not active."""
    error: BaseException | None = None
    constraints: Constraints = field(default_factory=Constraints)
    options: Any = None
    """Its validated options, an instance of the model that it declares."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Its schedule and error policy from the settings."""

    @property
    def name(self) -> str:
        return self.installed.name

    def fail(self, what: str, error: BaseException) -> None:
        self.state, self.error = "failed", error
        self.reason = f"{what}: {error_message(error) if isinstance(error, HooklineError) else describe_error(error)}"

    @contextmanager
    def fails_on_error(self, what: str) -> Iterator[None]:
        """Record what the block raises as this plugin's failure, so that the other plugins still load."""
        try:
            yield
        except (KeyboardInterrupt, Interruption):
            raise
        except BaseException as error:
            self.fail("cannot be used" if isinstance(error, PluginError) else what, error)


def installed_plugins() -> list[InstalledPlugin]:
    """All plugins of this environment, sorted by name."""
    found: list[InstalledPlugin] = []
    try:
        found += map(_installed, importlib_metadata.entry_points(group=PROJECT_NAME))
    except Exception:
        # One distribution with broken metadata makes the whole query fail: read them one by one.
        found = _installed_one_by_one()
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution))


def _is_bridge(name: str) -> bool:
    """Whether a distribution is a bridge to another trainer: named like a plugin's, and without entry points."""
    try:
        dist = importlib_metadata.distribution(f"{PROJECT_NAME}-{name}")
    except (importlib_metadata.PackageNotFoundError, ValueError):
        return False
    return not dist.entry_points.select(group=PROJECT_NAME)


def open_plugins(*, rank: int = 0, settings: Settings | None = None) -> PluginManager:
    """A manager with the installed plugins that the settings enable (default: those of this folder and environment).

    Use it as `with open_plugins() as manager:`, so that background work is finished at the end.
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
    """Import, configure and register the installed plugins that the settings enable.

    Raises `ConfigError` with all faults of the settings, and `OrderError` for a cycle or a missing requirement. A
    plugin that cannot be imported or constructed is left out, with the reason in its record and in the log. With
    `strict = true` it is an error.
    """
    loader = PluginLoader(manager, read_settings() if settings is None else settings, installed)
    loader.prepare()
    if loader.faults:
        raise ConfigError(loader.faults)  # before any plugin is constructed
    loader.register()
    loader.raise_faults()
    for record in loader.failed():
        logger.error("plugin %s %s; it is left out", record.installed, record.reason)
    return loader.records


class PluginLoader:
    """Loads installed plugins, step by step.

    A plugin with a fault is left out and the others are loaded. The faults are in `faults` and in the records.
    """

    def __init__(
        self, manager: PluginManager, settings: Settings, installed: Sequence[InstalledPlugin] | None = None
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.records = [PluginRecord(plugin) for plugin in (installed_plugins() if installed is None else installed)]
        self.faults: list[ConfigFault] = list(settings.faults)
        self.order_error: OrderError | None = None
        self._blueprints: dict[str, Blueprint] = {}
        self._plugins: dict[str, Any] = {}

    @cached_property
    def _names(self) -> set[str]:
        return {record.name for record in self.records}

    def prepare(self) -> None:
        """Import the enabled plugins and validate their options."""
        remember_secrets(self.settings.options)
        self._check_mentions()
        for record in self.records:
            reason = self.settings.disabled_reason(record.name, record.installed.distribution)
            if reason is not None:
                record.state, record.reason = "disabled", reason
        self._check_duplicates()
        for record in self._active():
            with record.fails_on_error("cannot be imported"):
                self._blueprints[record.name] = Blueprint.of(record.name, record.installed.load())
        for record in self._active():
            with record.fails_on_error("cannot be configured"):
                self._configure(record)
        self._check_required()

    def register(self) -> None:
        """Construct and register the prepared plugins, required ones before those that require them."""
        self.manager.installed, self.manager.settings = self.records, self.settings
        overrides = {}
        for record in self._active():
            with record.fails_on_error("cannot be constructed"):
                self._plugins[record.name] = self._blueprints[record.name].build(self.manager.emit)
        for record in self._active():
            with record.fails_on_error("cannot be used"):
                overrides[record.name] = self._overrides(record)
        for record in self._in_order():
            with record.fails_on_error("cannot be used"):
                self.manager.register(self._plugins[record.name], record.name, overrides=overrides[record.name])
            if isinstance(record.error, OrderError):
                self.order_error = self.order_error or record.error

    def failed(self) -> list[PluginRecord]:
        return [record for record in self.records if record.state == "failed"]

    def raise_faults(self) -> None:
        """Raise the faults that stop a run: of the settings, of the order, and with `strict` any failed plugin."""
        if self.faults:
            raise ConfigError(self.faults)
        if self.order_error is not None:
            raise self.order_error
        failed = self.failed()
        if failed and self.settings.strict:
            listing = "\n".join(f"  plugin {record.installed} {record.reason}" for record in failed)
            raise PluginError(None, f"plugins failed to load, and strict = true:\n{listing}") from failed[0].error

    def _active(self) -> list[PluginRecord]:
        return [record for record in self.records if record.state == "active"]

    def _check_mentions(self) -> None:
        for mentioned, where in self.settings.mentions:
            name, at, distribution = mentioned.partition("@")
            origins = [record.installed.distribution for record in self.records if record.name == name]
            if not origins and _is_bridge(name):
                continue
            if not origins:
                problem = f"no installed plugin is called {name!r}{did_you_mean(name, self._names)}"
            elif at and canonicalize_name(distribution) not in map(canonicalize_name, origins):
                problem = f"plugin {name!r} comes from {' and '.join(origins)}, not from {distribution!r}"
            else:
                continue
            self.faults.append(ConfigFault(where, problem))

    def _check_duplicates(self) -> None:
        """Find names that two plugins have, before either is imported."""
        by_name: dict[str, list[PluginRecord]] = {}
        for record in self._active():
            by_name.setdefault(record.name, []).append(record)
        for name, records in by_name.items():
            if len(records) == 1:
                continue
            last = f"{name}@{records[-1].installed.distribution}"
            fault = ConfigFault(
                f"plugin {name!r}",
                f"two plugins have this name, from {' and '.join(record.installed.origin for record in records)}: "
                f'uninstall one, or disable it by disable = ["{last}"] or -p no:{last}',
            )
            self._fail_by_config(records, [fault])

    def _fail_by_config(self, records: Sequence[PluginRecord], faults: Sequence[ConfigFault]) -> None:
        self.faults += faults
        for record in records:
            record.state, record.error = "failed", ConfigError(faults)
            record.reason = f"cannot be configured: {'; '.join(map(str, faults))}"

    def _configure(self, record: PluginRecord) -> None:
        blueprint = self._blueprints[record.name]
        record.constraints = constraints_of(blueprint.target, record.name)
        faults = blueprint.read_options(self.settings)
        record.options, record.overrides = blueprint.options, blueprint.overrides_in(self.settings)
        if faults:
            self._fail_by_config([record], faults)

    def _check_required(self) -> None:
        records = {canonicalize_name(record.name): record for record in self.records}
        for requirement, where in self.settings.required:
            record = records.get(canonicalize_name(requirement.name))
            if record is None:
                hint = did_you_mean(requirement.name, self._names)
                problem = f"plugin {requirement.name!r} is required, but not installed{hint}"
            elif record.state != "active" and not isinstance(record.error, ConfigError):
                problem = f"plugin {requirement.name!r} is required, but it is {record.state}: {record.reason}"
            elif not requirement.specifier.contains(record.installed.version, prereleases=True):
                problem = f"plugin {str(requirement)!r} is required, but {record.installed.version} is installed"
            else:
                continue
            self.faults.append(ConfigFault(where, problem))

    def _overrides(self, record: PluginRecord) -> Overrides:
        plugin = self._plugins[record.name]
        schedules = {}
        for attribute in dir(plugin):
            options: Mapping[str, Any] | None = self.manager.parse_hookimpl_opts(plugin, attribute)
            if options is not None:
                schedules[options.get("specname") or attribute] = options.get("schedule")
        clocks = {name: event.clock for name, event in self.manager.events.items()}
        overrides, faults = self._blueprints[record.name].overrides(
            self.settings, record.installed.origin, schedules, clocks
        )
        if faults:
            self._fail_by_config([record], faults)
        return overrides

    def _in_order(self) -> list[PluginRecord]:
        """The active plugins, each after those that it requires. Plugins in a cycle fail."""
        while True:
            by_name = {record.name: record for record in self._active()}
            constraints = {name: record.constraints for name, record in by_name.items()}
            try:
                self._check_requires(constraints)
                sort_by_constraints(list(constraints), constraints)
            except OrderError as error:
                self.order_error = self.order_error or error
                for name in error.among:
                    by_name[name].fail("cannot be used", error)
                continue
            required_first = {name: Constraints(after=own.requires) for name, own in constraints.items()}
            return [by_name[name] for name in sort_by_constraints(list(required_first), required_first)]

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
                    raise OrderError(None, f"plugin {name!r} requires {required!r}, which is {why}", [name])


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
