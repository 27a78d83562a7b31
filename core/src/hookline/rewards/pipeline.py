"""Verifier pipelines: made of the installed verifiers, of verifiers named in a config, or of your own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hookline.errors import ConfigError, ConfigFault, HooklineError, did_you_mean
from hookline.plugin_manager.construction import make_plugin
from hookline.plugin_manager.discovery import FoundPlugin, find_plugins
from hookline.plugin_manager.loading import load_plugins
from hookline.plugin_manager.manager import Overrides, PluginManager
from hookline.plugin_manager.settings import Settings, read_settings
from hookline.rewards.errors import OnFailure, RewardError
from hookline.rewards.features import FeatureTable
from hookline.rewards.verification import (
    HOW_TO_GET_VERIFIERS,
    RESULTS,
    CombinedReports,
    ReportColumn,
    combine_reports,
    verify_batch,
)
from hookline.text_verifier import TextVerifier
from hookline_hookspecs import Episode, EpisodeBatch, VerificationReport
from hookline_hookspecs.errors import describe_error

__all__ = [
    "VerifierPipeline",
    "create_custom_verifier_pipeline",
    "create_default_verifier_pipeline",
    "load_verifiers",
    "make_verifier",
]


logger = logging.getLogger("hookline.rewards")

PREFIX: Final = "verify-"
"""The entry point of a verifier is called `verify-<type>`."""


class VerifierPipeline:
    """The verifiers of one plugin manager, and their combined reports."""

    def __init__(self, manager: PluginManager, *, on_failure: OnFailure = "raise") -> None:
        self.manager = manager
        self._on_failure = on_failure

    @property
    def verifiers(self) -> list[str]:
        """The names of the verifier plugins, in call order."""
        hookimpls = self.manager.hook.verify_episodes.get_hookimpls()
        return [hookimpl.plugin_name for hookimpl in reversed(hookimpls)]

    def verify(self, prompt: str, response: str) -> VerificationReport:
        """The combined report on one response."""
        return self.verify_batch([prompt], [response])[0]

    def verify_batch(self, prompts: Sequence[str], responses: Sequence[str]) -> Sequence[VerificationReport]:
        """The combined report on each response, in order."""
        if len(prompts) != len(responses):
            raise RewardError(f"there are {len(prompts)} prompts for {len(responses)} responses")
        episodes = [Episode(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        return self.verify_episodes(EpisodeBatch(episodes))

    def verify_episodes(self, batch: EpisodeBatch) -> CombinedReports:
        """The combined report on each episode of a batch. A batch without a feature table gets one."""
        batch.features = FeatureTable.of(batch, self.manager.get_plugins())
        reports = combine_reports(verify_batch(self.manager, batch, self._on_failure))
        if logger.isEnabledFor(logging.DEBUG):
            columns = {"combined": reports, **reports.columns}
            logger.debug("verified %d episodes: %s", len(batch), "; ".join(map(_counted, columns, columns.values())))
        return reports


def create_default_verifier_pipeline() -> VerifierPipeline:
    """All installed verifiers that the user's settings enable, with the options set there."""
    manager = PluginManager()
    load_verifiers(manager)
    return VerifierPipeline(manager)


def create_custom_verifier_pipeline(configs: Iterable[Mapping[str, Any] | TextVerifier]) -> VerifierPipeline:
    """A pipeline of just these verifiers.

    :param configs: for each verifier its type and options, such as `{"type": "length", "min_length": 20}`, or a
        verifier object. The type `length` is the plugin with the entry point `verify-length`. A plugin that the
        user's settings disable or do not allow is an error.
    """
    manager, settings = PluginManager(), read_settings()
    if settings.faults:
        raise ConfigError(settings.faults)
    verifiers: dict[str, Any] = {}
    for index, config in enumerate(configs):
        kind, verifier = make_verifier(config, index, manager, settings)
        name, number = kind, 2
        while name in verifiers:
            name, number = f"{kind}-{number}", number + 1
        verifiers[name] = verifier
    if not verifiers:
        raise RewardError("the pipeline has no verifier: give at least one, such as {'type': 'length'}")
    for name, verifier in reversed(verifiers.items()):  # the last one registered is called first
        # A failed verifier must not let episodes pass.
        manager.register(verifier, name, overrides=Overrides(on_error="raise"))
    return VerifierPipeline(manager)


def load_verifiers(manager: PluginManager, settings: Settings | None = None) -> None:
    """Register the installed verifiers that the settings enable. Other plugins are not imported."""
    settings = read_settings() if settings is None else settings
    verifiers = [plugin for plugin in find_plugins(settings) if plugin.name.startswith(PREFIX)]
    names = {plugin.name for plugin in verifiers}
    # Settings of other plugins are checked by the run, which loads them.
    mentions = [(name, where) for name, where in settings.mentions if name.startswith(PREFIX)]
    required = [(requirement, where) for requirement, where in settings.required if requirement.name in names]
    records = load_plugins(manager, dataclasses.replace(settings, mentions=mentions, required=required), verifiers)
    if not any(record.state == "active" for record in records):
        left_out = [f"{record.name} is {record.state} ({record.reason})" for record in records]
        problem = f"no verifier is enabled: {'; '.join(left_out)}" if left_out else "no verifier is installed"
        raise RewardError(f"{problem}: {HOW_TO_GET_VERIFIERS}")


def make_verifier(config: Any, index: int, manager: PluginManager, settings: Settings) -> tuple[str, Any]:
    """The verifier of one entry of a custom pipeline, and the name of its plugin.

    :param settings: a plugin that they disable or do not allow is not imported.
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
        return plugin.name, make_plugin(plugin.name, plugin.load(), options, manager, origins)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        what = str(error) if isinstance(error, HooklineError) else describe_error(error)
        raise RewardError(f"{where}: plugin {plugin} cannot be used: {what}") from error


def _find(kind: str, where: str, settings: Settings) -> FoundPlugin:
    """The one enabled plugin of this type."""
    installed = find_plugins(settings)
    found = [plugin for plugin in installed if plugin.name == PREFIX + kind]
    found = found or [plugin for plugin in installed if plugin.name == kind]
    if not found:
        raise RewardError(f"{where}: {_not_installed(kind, installed)}")
    reasons = {plugin: settings.disabled_reason(plugin.name, plugin.distribution) for plugin in found}
    enabled = [plugin for plugin, reason in reasons.items() if reason is None]
    if len(enabled) == 1:
        return enabled[0]
    if enabled:
        raise RewardError(
            f"{where}: two plugins have this name, {enabled[0]} and {enabled[1]}: uninstall or disable one"
        )
    raise RewardError(f"{where}: plugin {found[0]} is disabled, {reasons[found[0]]}")


def _not_installed(kind: str, installed: Sequence[FoundPlugin]) -> str:
    kinds = [plugin.name.removeprefix(PREFIX) for plugin in installed if plugin.name.startswith(PREFIX)]
    if not kinds:
        return f"no verifier is installed, so none of type {kind!r}: {HOW_TO_GET_VERIFIERS}"
    return (
        f"no verifier of type {kind!r} is installed{did_you_mean(kind, kinds)}; installed are "
        f"{', '.join(sorted(kinds))}"
    )


def _counted(name: str, reports: ReportColumn) -> str:
    applies = ~np.isnan(reports.scores)
    counts = [f"{int((reports.codes[applies] == code).sum())} {result.value}" for code, result in enumerate(RESULTS)]
    return f"{name}: {', '.join(counts)}"
