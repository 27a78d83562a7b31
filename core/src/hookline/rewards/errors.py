"""Failures of rewards and verifiers. Every message names the reward or verifier, and the episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from hookline.errors import HooklineError
from hookline_hookspecs import EpisodeBatch
from hookline_hookspecs.errors import describe_error

if TYPE_CHECKING:
    from hookline.plugin_manager.manager import PluginManager

__all__ = ["OnFailure", "RewardError", "collect_or_raise", "shown"]

OnFailure = Literal["raise", "not_applicable"]

SHOWN_CHARACTERS: Final = 80


class RewardError(HooklineError):
    """A reward or verifier failed, or returned an invalid value."""


def collect_or_raise(
    manager: PluginManager, event: str, batch: EpisodeBatch, on_failure: OnFailure
) -> list[tuple[str, Any]]:
    """Emit a collect event; with `on_failure="raise"`, raise if any plugin failed in it or is quarantined.

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
    return collected


def shown(value: object) -> str:
    """A value for an error message, shortened. Python refuses to print an integer of thousands of digits."""
    try:
        text = repr(value)
    except Exception:
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
