"""Which verifiers are installed. A plugin whose entry point is called `verify-<type>` is the verifier of that type."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hookline.plugins.construction import Blueprint
from hookline.plugins.discovery import InstalledPlugin, installed_plugins, load_plugins
from hookline.plugins.errors import ConfigError, ConfigFault, HooklineError, did_you_mean
from hookline.plugins.manager import PluginManager
from hookline.plugins.settings import Settings, read_settings
from hookline.rewards.errors import RewardError
from hookline.rewards.verification import HOW_TO_GET_VERIFIERS
from hookline.rewards.verifier import TextVerifier
from hookline_hookspecs.errors import describe_error

__all__ = ["load_verifiers", "make_verifier"]

PREFIX: Final = "verify-"


def load_verifiers(manager: PluginManager, settings: Settings | None = None) -> None:
    """Register the installed verifiers that the settings want. Other plugins are not even imported."""
    settings = read_settings() if settings is None else settings
    verifiers = [plugin for plugin in installed_plugins() if plugin.name.startswith(PREFIX)]
    names = {plugin.name for plugin in verifiers}
    # What the settings say of other plugins is for the run to judge, which loads them.
    mentions = [(name, where) for name, where in settings.mentions if name.startswith(PREFIX)]
    required = [(requirement, where) for requirement, where in settings.required if requirement.name in names]
    records = load_plugins(manager, dataclasses.replace(settings, mentions=mentions, required=required), verifiers)
    if not any(record.state == "active" for record in records):
        left_out = [f"{record.name} is {record.state} ({record.reason})" for record in records]
        problem = f"no verifier is enabled: {'; '.join(left_out)}" if left_out else "no verifier is installed"
        raise RewardError(f"{problem}: {HOW_TO_GET_VERIFIERS}")


def make_verifier(config: Any, index: int, manager: PluginManager, settings: Settings) -> tuple[str, Any]:
    """The verifier that one entry of a custom pipeline asks for, and the name of its plugin.

    :param settings: what they disable or do not allow is not imported.
    """
    if isinstance(config, TextVerifier):
        return config.name or type(config).__name__, config
    where = f"verifier {index}"
    if not isinstance(config, Mapping) or not isinstance(config.get("type"), str):
        problem = f"must be a dictionary with a 'type', or a TextVerifier, got {config!r}"
        raise ConfigError([ConfigFault(where, problem)])
    plugin = _find(config["type"], where, settings)
    options = {key: value for key, value in config.items() if key != "type"}
    origins = {(plugin.name, key): f"{where} ({config['type']}): {key}" for key in options}
    try:
        blueprint = Blueprint.of(plugin.name, plugin.load())
    except (Exception, SystemExit) as error:
        what = str(error) if isinstance(error, HooklineError) else describe_error(error)
        raise RewardError(f"{where}: plugin {plugin} cannot be used: {what}") from error
    faults = blueprint.read_options(Settings(options={plugin.name: options}, origins=origins))
    if faults:
        raise ConfigError(faults)
    return plugin.name, blueprint.build(manager.emit)


def _find(kind: str, where: str, settings: Settings) -> InstalledPlugin:
    """The one plugin of this type that the settings let in."""
    installed = installed_plugins()
    found = [plugin for plugin in installed if plugin.name == PREFIX + kind]
    found = found or [plugin for plugin in installed if plugin.name == kind]
    if not found:
        raise RewardError(f"{where}: {_not_installed(kind, installed)}")
    reasons = {plugin: settings.why_off(plugin.name, plugin.distribution) for plugin in found}
    enabled = [plugin for plugin, reason in reasons.items() if reason is None]
    if len(enabled) == 1:
        return enabled[0]
    if enabled:
        raise RewardError(
            f"{where}: two plugins go by this name, {enabled[0]} and {enabled[1]}: uninstall or disable one"
        )
    raise RewardError(f"{where}: plugin {found[0]} is disabled, {reasons[found[0]]}")


def _not_installed(kind: str, installed: Sequence[InstalledPlugin]) -> str:
    kinds = [plugin.name.removeprefix(PREFIX) for plugin in installed if plugin.name.startswith(PREFIX)]
    if not kinds:
        return f"no verifier is installed, so none of type {kind!r}: {HOW_TO_GET_VERIFIERS}"
    return (
        f"no verifier of type {kind!r} is installed{did_you_mean(kind, kinds)}; installed are "
        f"{', '.join(sorted(kinds))}"
    )
