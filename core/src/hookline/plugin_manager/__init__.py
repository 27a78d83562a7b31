"""The plugin manager, and how plugins are found and configured.

`open_plugins` makes a manager with the plugins that pyproject.toml and the environment enable:

    with open_plugins() as manager:
        manager.emit.on_epoch_end(state=state)
"""

from hookline.errors import ConfigError, HooklineError, OrderError, PluginError
from hookline.plugin_manager.loading import load_plugins, open_plugins
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import read_settings

__all__ = [
    "ConfigError",
    "HooklineError",
    "OrderError",
    "PluginError",
    "PluginManager",
    "load_plugins",
    "open_plugins",
    "read_settings",
]
