"""Hookline: a training loop that is small, and plugins that do everything else."""

from typing import TYPE_CHECKING, Any

from hookline.plugin_manager.manager import PluginManager
from hookline_hookspecs import hookimpl

if TYPE_CHECKING:
    from hookline.training.run import train

__all__ = ["PluginManager", "hookimpl", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The command line imports this package at every start: torch is imported by who asks for `train`.
    if name == "train":
        from hookline.training.run import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
