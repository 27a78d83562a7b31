"""Verifier pipelines: verifiers found among the installed plugins, combined into one verdict."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hookline.plugins.errors import ConfigError
from hookline.plugins.manager import Overrides, PluginManager
from hookline.plugins.settings import read_settings
from hookline.rewards.config import OnFailure
from hookline.rewards.errors import RewardError
from hookline.rewards.features import FeatureTable
from hookline.rewards.installed import load_verifiers, make_verifier
from hookline.rewards.reports import RESULTS, ReportColumn
from hookline.rewards.verification import CombinedReports, combine_reports, verify_batch
from hookline.rewards.verifier import TextVerifier
from hookline_hookspecs import Episode, EpisodeBatch, VerificationReport

__all__ = ["VerifierPipeline", "create_custom_verifier_pipeline", "create_default_verifier_pipeline"]

logger = logging.getLogger("hookline.rewards")


class VerifierPipeline:
    """The verifiers of one manager, asked together."""

    def __init__(self, manager: PluginManager, *, on_failure: OnFailure = "raise") -> None:
        self.manager = manager
        self._on_failure = on_failure

    @property
    def verifiers(self) -> list[str]:
        """The plugins that verify, in the order in which they are asked."""
        hookimpls = self.manager.hook.verify_episodes.get_hookimpls()
        return [hookimpl.plugin_name for hookimpl in reversed(hookimpls)]

    def verify(self, prompt: str, response: str) -> VerificationReport:
        """The combined report on one response."""
        return self.verify_batch([prompt], [response])[0]

    def verify_batch(self, prompts: Sequence[str], responses: Sequence[str]) -> Sequence[VerificationReport]:
        """The combined report on each response, in their order."""
        if len(prompts) != len(responses):
            raise RewardError(f"there are {len(prompts)} prompts for {len(responses)} responses")
        episodes = [Episode(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        return self.verify_episodes(EpisodeBatch(episodes))

    def verify_episodes(self, batch: EpisodeBatch) -> CombinedReports:
        """The combined report on each episode of a batch, which has a feature table or is given one."""
        batch.features = FeatureTable.of(batch, self.manager.get_plugins())
        reports = combine_reports(verify_batch(self.manager, batch, self._on_failure))
        if logger.isEnabledFor(logging.DEBUG):
            found = {"all together": reports, **reports.columns}
            logger.debug("verified %d episodes: %s", len(batch), "; ".join(map(_counted, found, found.values())))
        return reports


def _counted(name: str, reports: ReportColumn) -> str:
    applies = ~np.isnan(reports.scores)
    counts = [f"{int((reports.codes[applies] == code).sum())} {result.value}" for code, result in enumerate(RESULTS)]
    return f"{name}: {', '.join(counts)}"


def create_default_verifier_pipeline() -> VerifierPipeline:
    """All installed verifiers that the user's settings do not disable, with the options that those give them."""
    manager = PluginManager()
    load_verifiers(manager)
    return VerifierPipeline(manager)


def create_custom_verifier_pipeline(configs: Iterable[Mapping[str, Any] | TextVerifier]) -> VerifierPipeline:
    """A pipeline of just these verifiers.

    :param configs: for each verifier its `type` and its options: `{"type": "length", "min_length": 20}`. The type
        names an installed plugin, `length` the one whose entry point is `verify-length`. A verifier of your own
        can stand here itself. A plugin that the user's settings disable or do not allow is an error.
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
        raise RewardError("the pipeline has no verifier: name one or more, such as {'type': 'length'}")
    for name, verifier in reversed(verifiers.items()):  # who is registered last is asked first
        # A verifier that fails must not pass what it has not seen.
        manager.register(verifier, name, overrides=Overrides(on_error="raise"))
    return VerifierPipeline(manager)
