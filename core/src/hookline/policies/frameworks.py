"""Frameworks are extras: the error for one that is missing names the command that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from hookline.plugins.errors import HooklineError

__all__ = ["MissingFrameworkError", "require_framework"]

EXTRAS: Final = {
    "cloudpickle": "jax",
    "gymnasium": "jax",
    "gymnax": "gymnax",
    "jax": "jax",
    "numpy": "jax",
    "reasoning_gym": "reasoning-gym",
    "torch": "torch",
}
"""The extra of `hookline` that brings each module."""


class MissingFrameworkError(HooklineError, ImportError):
    """A framework is asked for that is not installed."""


def require_framework(module: str, purpose: str) -> ModuleType:
    """Import a module that comes with an extra.

    :param purpose: what needs it, as the subject of a sentence: "a rollout worker".
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise MissingFrameworkError(
                f"{purpose} needs {module}, which is installed but lacks {error.name}: "
                f'pip install "hookline[{EXTRAS[module]}]"',
                name=error.name,
            ) from error
        raise MissingFrameworkError(
            f'{purpose} needs {module}, which is not installed: pip install "hookline[{EXTRAS[module]}]"', name=module
        ) from error
