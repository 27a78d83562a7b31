"""Plugins: the manager that calls them, and how installed ones are found and configured.

settings = read_settings()                     # pyproject.toml, hookline.toml, environment
manager = PluginManager(rank=0)
load_plugins(manager, settings)
manager.emit.on_epoch_end(state=state)
manager.close()
"""

from hookline.plugins.discovery import load_plugins
from hookline.plugins.errors import ConfigError, HooklineError, OrderError, PluginError
from hookline.plugins.manager import PluginManager
from hookline.plugins.settings import read_settings

__all__ = [
    "ConfigError",
    "HooklineError",
    "OrderError",
    "PluginError",
    "PluginManager",
    "load_plugins",
    "read_settings",
]
