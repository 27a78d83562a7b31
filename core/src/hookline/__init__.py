"""Hookline: a small training loop, with plugins for everything else."""

from typing import TYPE_CHECKING, Any

from hookline.plugin_manager.manager import PluginManager
from hookline_hookspecs import hookimpl

if TYPE_CHECKING:
    from hookline.training.run import train

__all__ = ["PluginManager", "hookimpl", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Lazy, because the command line imports this package at every start, and `train` imports torch.
    if name == "train":
        from hookline.training.run import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
