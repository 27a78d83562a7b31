"""`HookManager`: registers class-style hooks as plugins. `HookAdapter` is the base of all adapted hook styles."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

from hookline.errors import HooklineError
from hookline.hooks.hook import Hook, OwnContext, is_hook, parts_of
from hookline.plugin_manager.manager import PluginManager
from hookline.rng_keys import key_for
from hookline_hookspecs import PROJECT_NAME, HookContext, Rollout, Scope, hookimpl
from hookline_hookspecs.errors import shortened

__all__ = [
    "RESULTS",
    "HookAdapter",
    "HookManager",
    "ResultCollisionError",
    "RolloutHook",
    "mark_of",
    "rollout_hook_plugin",
]

logger = logging.getLogger("hookline.hooks")

RESULTS: Final = "hook_results"
"""The key of a step's results in the context's metadata."""

PLUGIN_ATTRIBUTES: Final = ("critical", "on_error", "after", "before", "requires")

MARK: Final = f"{PROJECT_NAME}_impl"
"""The attribute in which `@hookimpl` stores its options."""

_merging = threading.Lock()
"""Held while a hook's results are merged into those of its step. Background hooks merge theirs on other threads."""

Merge = Callable[[str, Mapping[str, Any], HookContext], None]


class ResultCollisionError(HooklineError):
    """Two hooks returned a result of the same name at one step. Recorded as a fault, never raised."""


class HookManager:
    """Registers class-style hooks with a plugin manager.

    :param plugins: a rollout worker's manager, whose events call the hooks. The default is a new one, for `run_hooks`.
    """

    def __init__(self, plugins: PluginManager | None = None) -> None:
        self.plugins = plugins or PluginManager()
        self._registered: list[tuple[Hook, list[RolloutHook]]] = []
        self._have_collided: set[str] = set()

    def register_hook(self, hook: Hook) -> None:
        """Register a hook. It is called from the next step on."""
        parts = parts_of(hook)
        for place, part in enumerate(parts):
            if not is_hook(part):
                raise HooklineError(f"{part!r} is not a hook: it needs should_run(context) and run(context)")
            if any(part is other for other in parts[:place]):
                raise HooklineError(f"the hook {part!r} is in {hook!r} twice")
        known = [other for own, adapters in self._registered for other in (own, *(a.hook for a in adapters))]
        for part in (hook, *parts):
            if any(part is other for other in known):
                raise HooklineError(f"the hook {part!r} is registered already")
        adapters: list[RolloutHook] = []
        try:
            for part in parts:
                name = self.plugins.get_canonical_name(part)
                adapter = RolloutHook(part, name, self.merge)
                self.plugins.register(adapter, name)
                adapters.append(adapter)
        except Exception:
            self._unregister(adapters)
            raise
        self._registered.append((hook, adapters))

    def unregister_hook(self, hook: Hook) -> bool:
        """Unregister a hook. Returns whether it was registered."""
        for place, (own, adapters) in enumerate(self._registered):
            if own is hook:
                self._unregister(adapters)
                del self._registered[place]
                return True
        return False

    def clear_hooks(self) -> None:
        """Unregister all hooks. Other plugins stay."""
        for _, adapters in reversed(self._registered):
            self._unregister(adapters)
        self._registered.clear()

    def _unregister(self, adapters: list[RolloutHook]) -> None:
        # The newest first, because it may require an older one.
        for adapter in reversed(adapters):
            if self.plugins.is_registered(adapter):
                self.plugins.unregister(adapter)

    def get_hooks(self) -> list[Hook]:
        """The hooks, in order of registration."""
        return [hook for hook, _ in self._registered]

    def run_hooks(self, context: HookContext) -> dict[str, Any]:
        """Run all hooks as at the end of a rollout, and return their results by name.

        Waits for background hooks, up to the plugin manager's `drain_seconds`.
        """
        results: dict[str, Any] = {}
        context.metadata[RESULTS] = results
        hooks = [adapter for _, adapters in self._registered for adapter in adapters]
        others = [plugin for plugin in self.plugins.get_plugins() if plugin not in hooks]
        self.plugins.subset_hook_caller("on_rollout_end", others)(context=context, rollout=Rollout())
        self.plugins.drain()
        return results

    def merge(self, hook_name: str, results: Mapping[str, Any], context: HookContext) -> None:
        """Add a hook's results to those of its step. A name that is taken keeps its first value."""
        with _merging:
            merged: dict[str, Any] = context.metadata.setdefault(RESULTS, {})
            taken = [name for name in results if name in merged]
            merged.update({name: value for name, value in results.items() if name not in taken})
        if taken:
            self._report_collision(hook_name, taken, context.step)

    def _report_collision(self, hook_name: str, taken: list[str], step: int) -> None:
        """Record a collision, and log the first one of each hook."""
        others = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        message = f"another hook already returned {taken[0]!r}{others} at step {step}; the first value is kept"
        self.plugins.faults.record(hook_name, "on_rollout_end", ResultCollisionError(message))
        if hook_name not in self._have_collided:
            self._have_collided.add(hook_name)
            logger.warning("hook %r: %s. Rename the result; this is logged once", hook_name, message)


class HookAdapter:
    """A plugin that calls a hook. It copies the hook's `critical`, `on_error`, `after`, `before` and `requires`."""

    newest_last: ClassVar = True
    requires: tuple[str, ...]

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        for name in PLUGIN_ATTRIBUTES:
            if hasattr(hook, name):
                setattr(self, name, getattr(hook, name))

    def implement(
        self, event: str, function: Callable[..., Any], method: Callable[..., Any], scope: Scope | None = None
    ) -> None:
        """Make a function the implementation of an event.

        :param method: the hook's method, which the function calls. Its `@hookimpl` options apply to the function.
        :param scope: the scope, if the method has no `@hookimpl`.
        """
        default = hookimpl(scope=scope, background=inspect.iscoroutinefunction(method))(function)
        setattr(function, MARK, {**(mark_of(method) or mark_of(default) or {}), "specname": event})
        # Stored under the method's name, because a hook may have several methods for one event.
        setattr(self, getattr(method, "__name__", event), function)


def mark_of(method: Any) -> Mapping[str, Any] | None:
    """The options of a method's `@hookimpl`, or None."""
    mark: Mapping[str, Any] | None = getattr(method, MARK, None)
    return mark


class RolloutHook(HookAdapter):
    """A class-style hook as a plugin, called at the end of every rollout with its own rng key.

    :param name: the plugin's name. The rng key is folded from it.
    :param merge: called with the hook's results.
    """

    def __init__(self, hook: Hook, name: str, merge: Merge) -> None:
        super().__init__(hook)
        self._name = name
        self._merge = merge
        self._previous_step: int | None = None
        for method in dir(type(hook)):
            if method != "run" and mark_of(getattr(type(hook), method)) is not None:
                setattr(self, method, getattr(hook, method))
        event = (mark_of(hook.run) or {}).get("specname") or "on_rollout_end"
        call = self._async_call() if inspect.iscoroutinefunction(hook.run) else self._call()
        self.implement(event, call, hook.run)

    def _call(self) -> Callable[[HookContext], None]:
        def call(context: HookContext) -> None:
            own = self._own_context(context)
            if self.hook.should_run(own):
                start = time.perf_counter()
                self._take(self.hook.run(own), context, start)

        return call

    def _async_call(self) -> Callable[[HookContext], Awaitable[None]]:
        async def call(context: HookContext) -> None:
            own = self._own_context(context)
            if self.hook.should_run(own):
                start = time.perf_counter()
                self._take(await self.hook.run(own), context, start)

        return call

    def _own_context(self, context: HookContext) -> OwnContext:
        key, previous = key_for(context.rng, self._name), self._previous_step
        self._previous_step = context.step
        return OwnContext(context.worker, context.step, key, context.lesson_id, context.metadata, previous)

    def _take(self, results: Any, context: HookContext, start: float) -> None:
        if results is not None and not (isinstance(results, Mapping) and all(isinstance(own, str) for own in results)):
            raise TypeError(f"run returned {shortened(results)}; it must be None or a dictionary by name")
        milliseconds = 1000 * (time.perf_counter() - start)
        logger.debug(
            "hook %r ran at step %d (lesson %r) in %.1f ms and returned %s",
            self._name,
            context.step,
            context.lesson_id,
            milliseconds,
            ", ".join(results or ()) or "nothing",
        )
        self._merge(self._name, results or {}, context)


def rollout_hook_plugin(hook: Hook, name: str, plugins: PluginManager) -> RolloutHook:
    """A hook that the settings name, as a plugin."""
    return RolloutHook(hook, name, HookManager(plugins).merge)
