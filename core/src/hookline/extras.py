"""Import optional packages. The error for a missing one says which extra to install."""

from __future__ import annotations

import importlib
from typing import Any, Final

from hookline.errors import HooklineError

__all__ = ["MissingExtraError", "require"]

EXTRAS: Final = {
    "ahocorasick_rs": "rewards",
    "cloudpickle": "jax",
    "httpcore": "http",
    "jax": "jax",
    "mlx": "mlx",
    "mlx_lm": "mlx-lm",
    "numpy": "jax",
    "peft": "hf",
    "safetensors": "hf",
    "tenacity": "http",
    "torch": "torch",
    "transformers": "hf",
}
"""The extra of `hookline` that installs each package."""


class MissingExtraError(HooklineError, ImportError):
    """An optional package is not installed, or cannot be imported."""


def require(module: str, purpose: str, extra: str | None = None, distribution: str = "hookline") -> Any:
    """Import a module of an optional package.

    :param purpose: what needs it, as the subject of a sentence: "a rollout worker".
    :param extra: the extra to name in the error, if several install the package.
    :param distribution: the distribution that the extra belongs to.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name in (package, module)
        state = "is not installed" if is_absent else f"is installed but cannot be imported ({error})"
        command = f'pip install "{distribution}[{extra or EXTRAS[package]}]"'
        raise MissingExtraError(f"{purpose} needs {package}, which {state}: {command}", name=error.name) from error
