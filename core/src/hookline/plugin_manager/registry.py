"""What plugins add before a run begins: the answers to a setup event, where each name may be given once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hookline.errors import HooklineError, PluginError
from hookline.plugin_manager.manager import PluginManager

__all__ = ["DuplicateOfferError", "Offer", "gather_offers"]


class DuplicateOfferError(HooklineError):
    """One name is given twice."""


class Offer(NamedTuple):
    """A task, loss, environment or the like, and who gives it."""

    giver: str
    value: Any


def gather_offers(
    manager: PluginManager, event: str, what: str, own: Mapping[str, Any] | None = None
) -> dict[str, Offer]:
    """All that plugins give in a setup event, by name, after those of Hookline's own.

    :param what: what is given, for the error when two give one name: "a task".
    """
    offers = {name: Offer("hookline itself", value) for name, value in (own or {}).items()}
    for plugin, given in getattr(manager.emit, event)().items():
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            problem = f"{event} must return a dictionary with {what} for each name, not {given!r}"
            manager.report_failure(plugin, event, PluginError(None, problem))
            continue
        for name, value in given.items():
            offer = Offer(f"plugin {plugin!r}", value)
            if name in offers:
                raise DuplicateOfferError(f"{offers[name].giver} and {offer.giver} both give {what} {name!r}")
            offers[name] = offer
    return offers
