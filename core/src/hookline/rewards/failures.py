"""When a plugin fails to score or verify: going on without it would change what is rewarded, unnoticed."""

from __future__ import annotations

from typing import Any

from hookline.plugin_manager.manager import PluginManager
from hookline.rewards.config import OnFailure
from hookline.rewards.errors import RewardError
from hookline_hookspecs import EpisodeBatch

__all__ = ["collect_or_raise"]


def collect_or_raise(
    manager: PluginManager, event: str, batch: EpisodeBatch, on_failure: OnFailure
) -> list[tuple[str, Any]]:
    """Emit a collect event, and raise if a plugin failed in it and its policy was to carry on.

    A plugin whose policy is to raise does so by itself. With `on_failure="not_applicable"` the others' results are
    taken; the manager has counted and logged the failure.
    """
    before = _failures(manager, event)
    collected: list[tuple[str, Any]] = getattr(manager.emit, event)(batch=batch).items()
    if on_failure == "raise":
        for plugin, (count, error) in _failures(manager, event).items():
            if count > before.get(plugin, (0, ""))[0] or plugin in manager.faults.quarantined:
                raise RewardError(
                    f"plugin {plugin!r} failed in {event}: {error}; "
                    "RewardConfig.on_failure = 'not_applicable' would go on without it"
                )
    return collected


def _failures(manager: PluginManager, event: str) -> dict[str, tuple[int, str]]:
    faults = [fault for fault in manager.faults.faults.values() if fault.event == event]
    totals: dict[str, tuple[int, str]] = {}
    for fault in faults:
        count, _ = totals.get(fault.plugin, (0, ""))
        totals[fault.plugin] = (count + fault.count, fault.error)
    return totals
