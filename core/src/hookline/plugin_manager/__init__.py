"""The plugin manager, and how plugins are found and configured.

`open_plugins` makes a manager with the plugins that pyproject.toml and the environment enable:

    with open_plugins() as manager:
        manager.emit.on_epoch_end(state=state)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hookline.errors import ConfigError, HooklineError, OrderError, PluginError

if TYPE_CHECKING:
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

_MODULES: Final = {
    "PluginManager": "manager",
    "load_plugins": "loading",
    "open_plugins": "loading",
    "read_settings": "settings",
}


def __getattr__(name: str) -> Any:
    # Lazy: commands that show events or help need few of these modules.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
