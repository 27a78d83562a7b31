"""Packages that only some rewards need, and the error that says how to get one that is missing."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["require"]


def require(module: str, extra: str = "rewards") -> Any:
    """Import a module that comes with one of Hookline's extras."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"hookline.rewards needs {package}, which cannot be imported ({error}): pip install 'hookline[{extra}]'",
            name=package,
        ) from error
