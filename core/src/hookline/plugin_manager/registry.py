"""Registries filled by plugins: tasks, losses, environments and the like, from the events of the setup phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hookline.errors import HooklineError, PluginError
from hookline.plugin_manager.manager import PluginManager

__all__ = ["DuplicateNameError", "Registered", "collect_registered"]


class DuplicateNameError(HooklineError):
    """Two plugins register the same name."""


class Registered(NamedTuple):
    """A task, loss, environment or the like, and where it comes from."""

    source: str
    value: Any


def collect_registered(
    manager: PluginManager, event: str, what: str, own: Mapping[str, Any] | None = None
) -> dict[str, Registered]:
    """Emit a setup event and merge the plugins' dictionaries with Hookline's own entries.

    :param what: the kind of entry, for error messages: "a task".
    """
    registry = {name: Registered("hookline itself", value) for name, value in (own or {}).items()}
    for plugin, entries in getattr(manager.emit, event)().items():
        if not isinstance(entries, Mapping) or not all(isinstance(name, str) for name in entries):
            problem = f"{event} must return a dictionary with {what} for each name, not {entries!r}"
            manager.report_failure(plugin, event, PluginError(None, problem))
            continue
        for name, value in entries.items():
            source = f"plugin {plugin!r}"
            if name in registry:
                raise DuplicateNameError(f"{registry[name].source} and {source} both register {what} {name!r}")
            registry[name] = Registered(source, value)
    return registry
