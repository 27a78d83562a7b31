"""Errors of plugins and configuration. Every message says where the fault is and what to do."""

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
    """One fault of the configuration."""

    where: str
    """The file and key, environment variable or command-line argument."""
    problem: str

    def __str__(self) -> str:
        return redact_text(f"{self.where}: {self.problem}")


class ConfigError(HooklineError):
    """The configuration has faults. All are in the message and in `faults`."""

    def __init__(self, faults: Sequence[ConfigFault]) -> None:
        self.faults = tuple(faults)
        heading = "the configuration has a fault" if len(faults) == 1 else f"the configuration has {len(faults)} faults"
        super().__init__("\n".join([f"{heading}:", *(f"  {fault}" for fault in faults)]))


class PluginError(HooklineError, PluginValidationError):
    """A plugin cannot be registered or loaded."""

    def __init__(self, plugin: object, message: str) -> None:
        PluginValidationError.__init__(self, plugin, message)


class DuplicatePluginError(PluginError, ValueError):
    """Two plugins have the same name."""


class OrderError(PluginError):
    """The order of plugins has a cycle, or a required plugin is missing.

    :param among: the plugins that cannot be placed.
    """

    def __init__(self, plugin: object, message: str, among: Sequence[str] = ()) -> None:
        super().__init__(plugin, message)
        self.among = tuple(among)


class EmitError(HooklineError, TypeError):
    """An event was emitted with unknown or missing arguments."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """` (did you mean 'x'?)` for the known name closest to `name`, or an empty string.

    :param cutoff: how alike they must be, from 0 to 1.
    """
    matches = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=cutoff)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
