"""When a plugin fails to score or verify: going on without it would change what is rewarded, unnoticed."""

from __future__ import annotations

from typing import Any

from hookline.plugin_manager.manager import PluginManager
from hookline.rewards.config import OnFailure
from hookline.rewards.errors import RewardError
from hookline_hookspecs import EpisodeBatch
from hookline_hookspecs.errors import describe_error

__all__ = ["collect_or_raise"]


def collect_or_raise(
    manager: PluginManager, event: str, batch: EpisodeBatch, on_failure: OnFailure
) -> list[tuple[str, Any]]:
    """Emit a collect event, and raise if a plugin failed in it and its policy was to carry on.

    A plugin whose policy is to raise does so by itself. With `on_failure="not_applicable"` the others' results are
    taken; the manager has counted and logged the failure.
    """
    with manager.failures_in(event) as failures:
        collected: list[tuple[str, Any]] = getattr(manager.emit, event)(batch=batch).items()
    if on_failure == "raise":
        for plugin, error in failures.items():
            raise _missing(f"plugin {plugin!r} failed in {event}: {describe_error(error)}") from error
        for plugin, why in manager.quarantined_in(event).items():
            raise _missing(f"plugin {plugin!r} {why} and is not called in {event} any more")
    return collected


def _missing(problem: str) -> RewardError:
    return RewardError(f"{problem}; RewardConfig.on_failure = 'not_applicable' would go on without it")
