"""Hookline: a small training loop, with plugins for everything else."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hookline.plugin_manager.manager import PluginManager
    from hookline.training.run import train
    from hookline_hookspecs import hookimpl

__all__ = ["PluginManager", "hookimpl", "train"]
__version__ = "0.1.0"

_MODULES: Final = {
    "PluginManager": "hookline.plugin_manager.manager",
    "hookimpl": "hookline_hookspecs",
    "train": "hookline.training.run",
}


def __getattr__(name: str) -> Any:
    # Lazy, because every module of this package imports it first, and `train` imports torch.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
