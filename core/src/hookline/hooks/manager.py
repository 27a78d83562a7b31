"""`HookManager`: registers hooks as plugins, and merges what they return."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hookline.hooks.hook import Hook
from hookline.hooks.plugin import RESULTS, HookPlugin
from hookline.plugins.errors import HooklineError
from hookline.plugins.manager import PluginManager
from hookline_hookspecs import HookContext, Rollout

__all__ = ["HookManager", "ResultCollisionError"]

logger = logging.getLogger("hookline.hooks")


class ResultCollisionError(HooklineError):
    """Two hooks returned a result of the same name at one step. Kept among the manager's faults, never raised."""


class HookManager:
    """Manages hooks among the plugins of a manager.

    :param plugins: a worker's, so that its events reach the hooks; one of its own when hooks are run by hand.
    """

    def __init__(self, plugins: PluginManager | None = None) -> None:
        self.plugins = plugins or PluginManager()
        self._registered: dict[str, HookPlugin] = {}

    def register_hook(self, hook: Hook) -> None:
        """Have a hook asked from the next step on."""
        if not callable(getattr(hook, "should_run", None)) or not callable(getattr(hook, "run", None)):
            raise HooklineError(f"{hook!r} is no hook: it needs should_run(context) and run(context)")
        if any(plugin.hook is hook for plugin in self._registered.values()):
            raise HooklineError(f"the hook {hook!r} is registered already")
        name = self.plugins.get_canonical_name(hook)
        plugin = HookPlugin(hook, name, self._merge)
        self.plugins.register(plugin, name)
        self._registered[name] = plugin

    def unregister_hook(self, hook: Hook) -> bool:
        """Ask a hook no more; says whether it was registered."""
        for name, plugin in self._registered.items():
            if plugin.hook is hook:
                self.plugins.unregister(name=name)
                del self._registered[name]
                return True
        return False

    def clear_hooks(self) -> None:
        """Unregister all hooks. Other plugins stay."""
        for name in self._registered:
            self.plugins.unregister(name=name)
        self._registered.clear()

    def get_hooks(self) -> list[Hook]:
        """The hooks in the order of their registration."""
        return [plugin.hook for plugin in self._registered.values()]

    def run_hooks(self, context: HookContext) -> dict[str, Any]:
        """Ask all hooks by hand, as the end of a rollout does, and return their results by name."""
        context.metadata.pop(RESULTS, None)
        hooks = list(self._registered.values())
        others = [plugin for plugin in self.plugins.get_plugins() if plugin not in hooks]
        self.plugins.subset_hook_caller("on_rollout_end", others)(context=context, rollout=Rollout())
        results: dict[str, Any] = context.metadata.get(RESULTS, {})
        return results

    def _merge(self, hook_name: str, results: Mapping[str, Any], context: HookContext) -> None:
        merged: dict[str, Any] = context.metadata.setdefault(RESULTS, {})
        for name, value in results.items():
            if name in merged:
                message = f"{name!r} was returned at step {context.step} by another hook already; that one's is kept"
                logger.warning("hook %r: %s", hook_name, message)
                self.plugins.faults.record(hook_name, "on_rollout_end", ResultCollisionError(message))
            else:
                merged[name] = value
