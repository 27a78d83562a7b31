"""Hookline: a training loop that is small, and plugins that do everything else."""

from hookline.plugins.manager import PluginManager
from hookline_hookspecs import hookimpl

__all__ = ["PluginManager", "hookimpl"]
__version__ = "0.1.0"
