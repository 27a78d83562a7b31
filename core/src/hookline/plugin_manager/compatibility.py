"""Plugins for other versions of the hookspecs: what is missing is named, and what is deprecated is warned of once.

A plugin is judged by what it uses, not by the versions that its distribution declares. Those are in the message.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

import hookline_hookspecs
from hookline.errors import PluginError, did_you_mean
from hookline.plugin_manager.settings import normalized
from hookline_hookspecs.history import REMOVED

if TYPE_CHECKING:
    import pluggy

    from hookline.plugin_manager.events import Event

__all__ = [
    "MissingInHookspecsError",
    "built_for",
    "missing_argument",
    "missing_event",
    "missing_import",
    "warn_of_deprecations",
]

logger = logging.getLogger("hookline.plugins")

HOOKSPECS: Final = "hookline-hookspecs"


class MissingInHookspecsError(PluginError):
    """A plugin uses a name, an event or an argument that the installed hookspecs do not have."""


def missing_event(plugin: object, name: str, event: str, known: Iterable[str]) -> MissingInHookspecsError:
    """The error for an implementation of an event that does not exist."""
    return MissingInHookspecsError(
        plugin, f"plugin {name!r} implements {event!r}, which is not an event{_what_became_of(event, known)}"
    )


def missing_argument(hookimpl: pluggy.HookImpl, event: Event, argument: str) -> MissingInHookspecsError:
    """The error for an implementation with an argument that its event does not have."""
    where = f"plugin {hookimpl.plugin_name!r}: {event.name}"
    became = _what_became_of(argument, event.arguments, f"{event.name}.{argument}")
    problem = (
        f"{where} has an argument {argument!r} that the event does not have{became}; the event is {event.signature}"
    )
    return MissingInHookspecsError(hookimpl.plugin, problem)


def missing_import(error: ImportError) -> MissingInHookspecsError | None:
    """The error for an import from `hookline_hookspecs` that failed; None if another import failed."""
    package, module = hookline_hookspecs.__name__, error.name or ""
    if module.partition(".")[0] != package:
        return None
    named = re.match(r"cannot import name '(\w+)'", str(error))
    name = named[1] if named else module.removeprefix(f"{package}.")
    if module == package and not named:
        return None  # the package itself is not there
    return MissingInHookspecsError(
        None, f"it imports {name!r} of {package}, which is not there{_what_became_of(name, hookline_hookspecs.__all__)}"
    )


def _what_became_of(name: str, known: Iterable[str], key: str | None = None) -> str:
    removed = REMOVED.get(key or name)
    installed = f"{HOOKSPECS} {hookline_hookspecs.__version__}"
    if removed is None:
        # A misspelling is meant, not an event of another version: their names have much in common.
        return f" in {installed}{did_you_mean(name, known, cutoff=0.75)}"
    return f" since {removed.until}, and {installed} is installed: use {removed.instead!r}"


def built_for(distribution: str, dependencies: Iterable[str]) -> str | None:
    """How the version that a distribution declares differs from the installed one; None if it does not."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import Version

    for text in dependencies:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if normalized(requirement.name) != HOOKSPECS or requirement.marker is not None:
            continue
        installed = Version(hookline_hookspecs.__version__)
        unmet = [own for own in requirement.specifier if not own.contains(installed, prereleases=True)]
        if unmet:
            is_older = any(Version(own.version.removesuffix(".*")) > installed for own in unmet)
            return (
                f"{distribution} is built for {HOOKSPECS}{requirement.specifier}, and {installed} is installed: "
                f"pip install --upgrade {HOOKSPECS if is_older else distribution}"
            )
    return None


def warn_of_deprecations(who: str, event: Event, arguments: Iterable[str]) -> None:
    """Say, once in a process, what a plugin uses that will be taken away, and what to use instead."""
    for what, lifetime in (
        (f"the event {event.name}", event.contract.lifetime),
        *((f"the argument {name!r} of {event.name}", event.contract.lifetime_of(name)) for name in arguments),
    ):
        if lifetime.until:
            _warn_once(f"{who} uses {what}, which will be gone in {lifetime.until}: use {lifetime.instead}")


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)
