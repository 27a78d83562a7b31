"""Hookline: a training loop that is small, and plugins that do everything else."""

from hookline_hookspecs import hookimpl

from hookline.plugins.manager import PluginManager

__all__ = ["PluginManager", "hookimpl"]
__version__ = "0.1.0"
