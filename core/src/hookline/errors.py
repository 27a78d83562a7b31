"""What can go wrong between a user, their config and their plugins. Every message says where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pluggy import PluginValidationError

from hookline_hookspecs import HooklineError
from hookline_hookspecs.redaction import redact_text

__all__ = [
    "ConfigError",
    "ConfigFault",
    "DuplicatePluginError",
    "EmitError",
    "HooklineError",
    "OrderError",
    "PluginError",
    "did_you_mean",
]


@dataclass(frozen=True)
class ConfigFault:
    """One thing that is wrong in the configuration."""

    where: str
    """The file and key, environment variable or command-line argument."""
    problem: str

    def __str__(self) -> str:
        return redact_text(f"{self.where}: {self.problem}")


class ConfigError(HooklineError):
    """The configuration has faults; all of them are in the message and in `faults`."""

    def __init__(self, faults: Sequence[ConfigFault]) -> None:
        self.faults = tuple(faults)
        heading = "the configuration has a fault" if len(faults) == 1 else f"the configuration has {len(faults)} faults"
        super().__init__("\n".join([f"{heading}:", *(f"  {fault}" for fault in faults)]))


class PluginError(HooklineError, PluginValidationError):
    """A plugin cannot be used as it is."""

    def __init__(self, plugin: object, message: str) -> None:
        PluginValidationError.__init__(self, plugin, message)


class DuplicatePluginError(PluginError, ValueError):
    """Two plugins go by one name."""


class OrderError(PluginError):
    """The order that plugins ask for cannot be had, or one that is required is missing.

    :param among: the plugins whose wishes cannot be met.
    """

    def __init__(self, plugin: object, message: str, among: Sequence[str] = ()) -> None:
        super().__init__(plugin, message)
        self.among = tuple(among)


class EmitError(HooklineError, TypeError):
    """An event was emitted with arguments that it does not take."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the known name nearest to `name`, or nothing when none is near."""
    matches = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
