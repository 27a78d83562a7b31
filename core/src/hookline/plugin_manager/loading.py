"""Load plugins into a manager: import, configure, order and register those that the settings enable."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from hookline.errors import (
    ConfigError,
    ConfigFault,
    HooklineError,
    OrderError,
    PluginError,
    did_you_mean,
)
from hookline.importing import NotFoundError
from hookline.plugin_manager.construction import Blueprint
from hookline.plugin_manager.discovery import FoundPlugin, ProjectPlugin, find_plugins, is_bridge
from hookline.plugin_manager.faults import Interruption
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline.plugin_manager.ordering import Constraints, constraints_of, sort_by_constraints
from hookline.plugin_manager.settings import Settings, normalized, read_settings
from hookline_hookspecs.errors import describe_error, error_message
from hookline_hookspecs.redaction import remember_secrets

__all__ = ["PluginLoader", "PluginRecord", "load_plugins", "open_plugins"]

logger = logging.getLogger("hookline.plugins")


@dataclass
class PluginRecord:
    """The state of a plugin after loading."""

    found: FoundPlugin
    state: Literal["active", "disabled", "failed"] = "active"
    reason: str = ""
    """Why it is not active."""
    error: BaseException | None = None
    summary: str = ""
    """What it does, in a sentence: the first of its docstring, or of its distribution if it is not imported."""
    constraints: Constraints = field(default_factory=Constraints)
    options: Any = None
    """Its validated options, an instance of the model that it declares."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Its schedule and error policy from the settings."""

    @property
    def name(self) -> str:
        return self.found.name

    def fail(self, what: str, error: BaseException) -> None:
        self.state, self.error = "failed", error
        self.reason = f"{what}: {error_message(error) if isinstance(error, HooklineError) else describe_error(error)}"
        if self.found.built_for is not None:  # it may be the cause, whatever the error says
            self.reason = f"{self.reason.removesuffix('.')}. {self.found.built_for}"

    @contextmanager
    def fails_on_error(self, what: str) -> Iterator[None]:
        """Record what the block raises as this plugin's failure, so that the other plugins still load."""
        try:
            yield
        except (KeyboardInterrupt, Interruption):
            raise
        except BaseException as error:
            self.fail("cannot be used" if isinstance(error, PluginError) else what, error)


def open_plugins(*, rank: int = 0, settings: Settings | None = None) -> PluginManager:
    """A manager with the plugins that the settings enable (default: the settings of this folder and environment).

    Use it as `with open_plugins() as manager:`, so that background work is finished at the end.
    """
    settings = read_settings() if settings is None else settings
    manager = PluginManager(
        rank=rank, background_capacity=settings.background_capacity, drain_seconds=settings.drain_seconds
    )
    check_lock(load_plugins(manager, settings), settings, rank)
    return manager


def check_lock(records: Sequence[PluginRecord], settings: Settings, rank: int) -> None:
    """Warn if what takes part differs from `hookline.lock`; with `strict = true`, raise."""
    from hookline.plugin_manager.lock_file import differences, find_lock

    path = find_lock(Path.cwd())
    found = [] if path is None else differences(path, records)
    if found and settings.strict:
        listing = "\n".join(f"  {difference}" for difference in found)
        raise PluginError(
            None,
            f"what takes part in this run differs from {path}, and strict = true:\n{listing}\n"
            "Install what is locked, or lock what is installed by `hookline lock`",
        )
    for difference in found if rank == 0 else ():
        logger.warning("%s: %s", path, difference)


def load_plugins(
    manager: PluginManager, settings: Settings | None = None, found: Sequence[FoundPlugin] | None = None
) -> list[PluginRecord]:
    """Import, configure and register the plugins that the settings enable.

    Raises `ConfigError` with all faults of the settings, and `OrderError` for a cycle or a missing requirement. A
    plugin that cannot be imported or constructed is left out, with the reason in its record and in the log. With
    `strict = true` it is an error.

    :param found: the plugins to choose from (default: all that `find_plugins` finds).
    """
    loader = PluginLoader(manager, read_settings() if settings is None else settings, found)
    loader.prepare()
    if loader.faults:
        raise ConfigError(loader.faults)  # before any plugin is constructed
    loader.register()
    loader.raise_faults()
    for record in loader.failed():
        logger.error("plugin %s %s; it is left out", record.found, record.reason)
    for record in loader.records:
        if record.state == "active" and record.found.built_for is not None:
            logger.warning(
                "plugin %s is used, since all that it implements is there, but %s", record.found, record.found.built_for
            )
    return loader.records


class PluginLoader:
    """Loads plugins, step by step.

    A plugin with a fault is left out and the others are loaded. The faults are in `faults` and in the records.
    """

    def __init__(self, manager: PluginManager, settings: Settings, found: Sequence[FoundPlugin] | None = None) -> None:
        self.manager = manager
        self.settings = settings
        found = find_plugins(settings) if found is None else found
        self.records = [PluginRecord(plugin, summary=plugin.summary) for plugin in found]
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
            reason = self.settings.disabled_reason(record.name, record.found.distribution)
            if reason is not None:
                record.state, record.reason = "disabled", reason
        self._check_duplicates()
        for record in self._active():
            with record.fails_on_error("cannot be imported"):
                self._import(record)
        for record in self._active():
            with record.fails_on_error("cannot be configured"):
                self._configure(record)
        self._check_required()

    def register(self) -> None:
        """Construct and register the prepared plugins, required ones before those that require them."""
        self.manager.records, self.manager.settings = self.records, self.settings
        overrides = {}
        for record in self._active():
            with record.fails_on_error("cannot be constructed"):
                self._plugins[record.name] = self._blueprints[record.name].build(self.manager)
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
            listing = "\n".join(f"  plugin {record.found} {record.reason}" for record in failed)
            raise PluginError(None, f"plugins failed to load, and strict = true:\n{listing}") from failed[0].error

    def _active(self) -> list[PluginRecord]:
        return [record for record in self.records if record.state == "active"]

    def _check_mentions(self) -> None:
        for mentioned, where in self.settings.mentions:
            name, at, distribution = mentioned.partition("@")
            origins = [record.found.distribution for record in self.records if record.name == name]
            if not origins and is_bridge(name):
                continue
            if not origins:
                problem = f"no installed plugin is called {name!r}{did_you_mean(name, self._names)}"
            elif at and normalized(distribution) not in map(normalized, origins):
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
            origins = " and ".join(record.found.origin for record in records)
            fault = ConfigFault(
                f"plugin {name!r}", f"two plugins have this name, from {origins}: {_how_to_tell_apart(records)}"
            )
            self._fail_by_config(records, [fault])

    def _import(self, record: PluginRecord) -> None:
        try:
            target = record.found.load()
            record.summary = _first_sentence(inspect.getdoc(target) or "") or record.summary
            self._blueprints[record.name] = Blueprint.of(record.name, target)
        except NotFoundError as error:
            if not isinstance(record.found, ProjectPlugin):
                raise
            # A name in the settings that is not there is a fault of the settings, as an unknown plugin is.
            problem = str(error)
            if record.found.entry.recorded:
                problem += f". The run began with it: put it back, or go on without it by -p no:{record.name}"
            self._fail_by_config([record], [ConfigFault(record.found.entry.where, problem)])

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
        records = {normalized(record.name): record for record in self.records}
        for requirement, where in self.settings.required:
            record = records.get(normalized(requirement.name))
            if record is None:
                hint = did_you_mean(requirement.name, self._names)
                problem = f"plugin {requirement.name!r} is required, but not installed{hint}"
            elif record.state != "active" and not isinstance(record.error, ConfigError):
                problem = f"plugin {requirement.name!r} is required, but it is {record.state}: {record.reason}"
            elif requirement.specifier and not record.found.version:
                problem = f"plugin {str(requirement)!r} is required, but {record.found} has no version"
            elif not requirement.specifier.contains(record.found.version or "0", prereleases=True):
                problem = f"plugin {str(requirement)!r} is required, but {record.found.version} is installed"
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
        if not schedules:
            what = f"{type(plugin).__name__} implements" if not isinstance(plugin, ModuleType) else "it implements"
            hint = self._name_a_class(plugin, record) or "mark methods that are named after events with @hookimpl"
            raise PluginError(plugin, f"{what} no event: {hint}")
        clocks = {name: event.clock for name, event in self.manager.events.items()}
        overrides, faults = self._blueprints[record.name].overrides(
            self.settings, record.found.origin, schedules, clocks
        )
        if faults:
            self._fail_by_config([record], faults)
        return overrides

    def _name_a_class(self, plugin: Any, record: PluginRecord) -> str | None:
        """What to say of a module of the project whose classes are plugins, and none of which is named."""
        if not isinstance(plugin, ModuleType) or not isinstance(record.found, ProjectPlugin):
            return None
        names = [
            f"{record.found.entry.reference}:{name}"
            for name, value in vars(plugin).items()
            if isinstance(value, type)
            and value.__module__ == plugin.__name__
            and any(self.manager.parse_hookimpl_opts(value, attribute) for attribute in dir(value))
        ]
        return f"name a class in it, as in {' or '.join(names)}" if names else None

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


def _first_sentence(doc: str) -> str:
    paragraph = " ".join(doc.partition("\n\n")[0].split())
    end = re.search(r"(?<!\be\.g)(?<!\bi\.e)[.!?](?= [A-Z`])", paragraph)
    return paragraph[: end.end()] if end else paragraph


def _how_to_tell_apart(records: Sequence[PluginRecord]) -> str:
    own = [record.found for record in records if isinstance(record.found, ProjectPlugin)]
    installed = [f"{found.name}@{found.distribution}" for found in (r.found for r in records) if found not in own]
    if not own:
        return f'uninstall one, or disable it by disable = ["{installed[-1]}"] or -p no:{installed[-1]}'
    another_name = f'load it by another name, as in load = ["{own[-1].name}-2={own[-1].entry.reference}"]'
    return f'{another_name}, or disable = ["{installed[0]}"]' if installed else another_name
