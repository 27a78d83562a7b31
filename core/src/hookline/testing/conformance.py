"""One test for any plugin: it can be made, registered, called with every event it implements, and taken out again."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from hookline.plugins.construction import Blueprint
from hookline.plugins.errors import ConfigError
from hookline.plugins.manager import Overrides, PluginManager
from hookline.plugins.settings import Settings
from hookline.testing.samples import sample_arguments

__all__ = ["check_plugin"]

FRAMEWORKS: Final = ("torch", "jax", "mlx", "wandb", "tensorflow")


def check_plugin(target: Any, **options: Any) -> None:
    """Check a plugin as its users would meet it; raises an error that says what is wrong.

    :param target: what the plugin's entry point names: its class, a function that makes it, or a module.
    :param options: what the user's config would say, where the plugin needs options.
    """
    plugin_name = "checked-plugin"
    with tempfile.TemporaryDirectory() as folder, PluginManager() as manager:
        plugin = _make(plugin_name, target, options, manager)
        _check_marks(plugin, manager)
        manager.register(plugin, plugin_name, overrides=Overrides(on_error="raise"))
        implemented = [caller.name for caller in manager.get_hookcallers(plugin) or ()]
        for name in implemented:
            event = manager.events.get(name)
            if event is not None:
                getattr(manager.hook, name)(**sample_arguments(event, Path(folder)))
        unfinished = manager.drain()
        assert not unfinished, "the plugin's background work did not come to an end"
        manager.unregister(name=plugin_name)
        manager.register(plugin, plugin_name)
    _check_imports(target)


def _make(name: str, target: Any, options: dict[str, Any], manager: PluginManager) -> Any:
    blueprint = Blueprint.of(name, target)
    faults = blueprint.read_options(Settings(options={name: options}))
    if faults:
        raise ConfigError(faults)
    return blueprint.build(manager.emit)


def _check_marks(plugin: Any, manager: PluginManager) -> None:
    marked = [name for name in dir(plugin) if manager.parse_hookimpl_opts(plugin, name) is not None]
    forgotten = [
        name
        for name in dir(plugin)
        if name in manager.events and name not in marked and callable(getattr(plugin, name))
    ]
    assert not forgotten, f"named after an event, but not marked with @hookimpl: {', '.join(forgotten)}"
    assert marked, "the plugin implements no event: mark its methods with @hookimpl"


def _check_imports(target: Any) -> None:
    """Importing a plugin happens at every start of the command line: it must bring in no framework."""
    module = target if isinstance(target, ModuleType) else inspect.getmodule(target)
    if module is None or module.__name__ == "__main__" or module.__spec__ is None:
        return
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import {module.__name__}; "
        f"print(*(name for name in {FRAMEWORKS!r} if name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"importing {module.__name__} in a process of its own fails:\n{result.stderr}"
    loaded = result.stdout.split()
    assert not loaded, f"importing {module.__name__} imports {', '.join(loaded)}: import it where it is used"
