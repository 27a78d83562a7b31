"""Failures of rewards and verifiers. Every message names the reward or verifier, and the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from hookline.errors import HooklineError
from hookline_hookspecs import EpisodeBatch
from hookline_hookspecs.errors import describe_error

if TYPE_CHECKING:
    from hookline.plugin_manager.manager import PluginManager

__all__ = ["OnFailure", "RewardError", "collect_or_raise"]

OnFailure = Literal["raise", "not_applicable"]


class RewardError(HooklineError):
    """A reward or verifier failed, or returned an invalid value."""


def collect_or_raise(
    manager: PluginManager, event: str, batch: EpisodeBatch, on_failure: OnFailure
) -> list[tuple[str, Mapping[str, Any]]]:
    """The results of a collect event by plugin, each a mapping from names of rewards or verifiers.

    With `on_failure="raise"`, raise if any plugin failed in it or is quarantined.

    A plugin's own error policy is often `warn`. Here that is not enough: without that plugin other episodes would be
    accepted, and the run would not show it.
    """
    with manager.failures_in(event) as failures:
        collected: list[tuple[str, Any]] = getattr(manager.emit, event)(batch=batch).items()
    if on_failure == "raise":
        hint = "; RewardConfig.on_failure = 'not_applicable' would continue without it"
        for plugin, error in failures.items():
            raise RewardError(f"plugin {plugin!r} failed in {event}: {describe_error(error)}{hint}") from error
        for plugin, why in manager.quarantined_in(event).items():
            raise RewardError(f"plugin {plugin!r} {why} and is no longer called in {event}{hint}")
    for plugin, result in collected:
        if not isinstance(result, Mapping):
            raise RewardError(
                f"plugin {plugin!r}: {event} must return a dictionary with the names of its rewards or verifiers, "
                f"got {type(result).__name__}"
            )
    return collected
