"""`PluginManager`: pluggy's manager with event kinds, schedules, order, error policies, background calls and timing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Final

import pluggy

from hookline.errors import DuplicatePluginError, OrderError, PluginError, did_you_mean
from hookline.plugin_manager.background import Background
from hookline.plugin_manager.compatibility import missing_event, warn_of_deprecations
from hookline.plugin_manager.dispatch import PLAIN_OPTIONS, Dispatcher
from hookline.plugin_manager.emitters import Emit, Emitter, compile_forward
from hookline.plugin_manager.events import Event, Implementation, check_implementation
from hookline.plugin_manager.faults import ErrorPolicy, FaultHandler, FaultLedger, error_policy_of, raise_failures
from hookline.plugin_manager.ordering import Constraints, constraints_of, sort_by_constraints
from hookline.plugin_manager.pluggy_internals import is_executor, replace_executor, set_hookimpls
from hookline.plugin_manager.timing import PluginTimer
from hookline_hookspecs import PHASES, PROJECT_NAME, Schedule, TrainerHook

if TYPE_CHECKING:
    from hookline.plugin_manager.loading import PluginRecord
    from hookline.plugin_manager.settings import Settings

__all__ = ["Overrides", "PluginManager"]


@dataclass(frozen=True)
class Overrides:
    """Schedules and error policy from the user's settings, which replace the plugin's own, and its distribution."""

    schedule: Schedule | None = None
    """Replaces the schedule of every implementation that has one."""
    event_schedules: Mapping[str, Schedule] = field(default_factory=dict)
    """Schedules by event."""
    on_error: ErrorPolicy | None = None
    distribution: str | None = None
    """Distribution and version, such as "hookline-metrics 0.1.0"."""


class PluginManager(pluggy.PluginManager):
    """Registers plugins and emits events to them.

    `emit.<event>(...)` calls the event's compiled emitter; `hook.<event>(...)` is pluggy's call with the same results.
    A new manager has the events of `hookline_hookspecs` and no plugins. `register` adds a plugin object;
    `hookline.plugin_manager.open_plugins` makes a manager with the installed plugins.

    :param rank: the rank of this process. Implementations with the scope `driver` run on rank 0 only.
    :param background_capacity: the length of each plugin's queue of background calls.
    :param drain_seconds: how long the end of a run waits for background calls.
    """

    def __init__(self, *, rank: int = 0, background_capacity: int = 256, drain_seconds: float = 5.0) -> None:
        super().__init__(PROJECT_NAME)
        self.rank: Final = rank
        self.faults: Final = FaultLedger()
        self.records: list[PluginRecord] = []
        """The plugins that were found, if they were loaded into this manager."""
        self.settings: Settings | None = None
        """The settings by which they were loaded."""
        self._lock = threading.RLock()
        self._handler = handler = FaultHandler(self.faults, self._rebuild_emitters)
        self._background = Background(
            background_capacity, drain_seconds, self.faults, handler.failed, self._rebuild_emitters
        )
        self._dispatcher = Dispatcher(replace_executor(self, self._execute), handler.failed, self._background)
        self._events: dict[str, Event] = {}
        self._emitters: dict[str, Emitter] = {}
        self._hook_emitters: dict[str, Emitter] = {}
        """Behind `hook.<event>(...)`: they return the results of notify events too."""
        self._constraints: dict[str, Constraints] = {}
        self._ordered: dict[str, Constraints] = {}
        """The constraints of the plugins that declare an order; most do not."""
        self._overrides: dict[str, Overrides] = {}
        self._implementations: dict[pluggy.HookImpl, Implementation] = {}
        self.emit: Final[Emit] = type("Emit", (Emit,), {"__slots__": ()})()
        for phase in PHASES:
            self.add_hookspecs(phase)

    # -- events ---------------------------------------------------------------------------------------------------

    @property
    def events(self) -> Mapping[str, Event]:
        """All events by name, in the order of their phases."""
        return self._events

    def add_hookspecs(self, module_or_class: Any) -> None:
        """Add the events that a module or class declares with `hookspec`."""
        with self._lock:
            super().add_hookspecs(module_or_class)
            # `vars` first, for the order of declaration.
            for name in dict.fromkeys((*vars(module_or_class), *dir(module_or_class))):
                caller = vars(self.hook).get(name)
                if caller is not None and caller.has_spec() and name not in self._events:
                    self._add_event(Event.of(caller))

    def _add_event(self, event: Event) -> None:
        self._events[event.name] = event
        for emitters, keep_results in ((self._emitters, False), (self._hook_emitters, True)):
            globals_ = self._dispatcher.globals()
            build = partial(self._build_emitter, event, globals_, keep_results)
            emitters[event.name] = Emitter(event, globals_, build, self._lock)
        setattr(type(self.emit), event.name, self._emitters[event.name].function)

    # -- registration ---------------------------------------------------------------------------------------------

    def get_canonical_name(self, plugin: object) -> str:
        """The name of a plugin registered without one: its `__name__` or its class's, with a number if taken."""
        name = str(getattr(plugin, "__name__", type(plugin).__name__))
        candidate, number = name, 2
        while self.has_plugin(candidate):
            candidate, number = f"{name}-{number}", number + 1
        return candidate

    def register(self, plugin: Any, name: str | None = None, *, overrides: Overrides | None = None) -> str | None:
        """Register a plugin, at any time. It is called from the next emission on. Returns its name."""
        with self._lock:
            plugin_name = name or self.get_canonical_name(plugin)
            self._check_plugin(plugin, plugin_name)
            overrides = overrides or Overrides()
            policy = overrides.on_error or error_policy_of(plugin, plugin_name)
            constraints = constraints_of(plugin, plugin_name)
            self._check_requirements(plugin, plugin_name, constraints)
            has_order = constraints.after or constraints.before or constraints.newest_last
            ordered = {**self._ordered, plugin_name: constraints} if has_order else self._ordered
            if ordered:
                # Raise for a cycle before anything has changed.
                sort_by_constraints([*self._constraints, plugin_name], ordered)
            try:
                if super().register(plugin, plugin_name) is None:
                    return None  # blocked by `set_blocked`
            except BaseException:
                # pluggy adds implementations one by one: those before a bad one are in place already.
                super().unregister(plugin, plugin_name)
                raise
            self._constraints[plugin_name] = constraints
            self._ordered = ordered
            self._overrides[plugin_name] = overrides
            self.faults.quarantined.pop(plugin_name, None)
            self._adopt_implementations(plugin_name, overrides, policy)
            return plugin_name

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """The options of an implementation, or None. pluggy asks for every attribute, and half of them are dunders."""
        if name.startswith("__"):
            return None
        return super().parse_hookimpl_opts(plugin, name)

    def _check_plugin(self, plugin: Any, name: str) -> None:
        other = self.get_plugin(name)
        if other is not None:
            raise DuplicatePluginError(plugin, f"two plugins are called {name!r}: {other!r} and {plugin!r}")
        if isinstance(plugin, TrainerHook):
            raise PluginError(
                plugin, f"{name!r} is a TrainerHook: add it by trainer.add_hook(...), which finds its arguments by name"
            )
        for attribute in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, attribute)
            if options is None:
                continue
            event = options.get("specname") or attribute
            if event not in self._events and not options.get("optionalhook"):
                raise missing_event(plugin, name, event, self._events)
            if isinstance(plugin, type):
                raise PluginError(plugin, f"plugin {name!r} is a class: register an instance of it")
            if event in self._events:
                function = getattr(plugin, attribute)
                hookimpl = pluggy.HookImpl(plugin, name, function, {**PLAIN_OPTIONS, **options})
                check_implementation(hookimpl, self._events[event])

    def _check_requirements(self, plugin: Any, name: str, constraints: Constraints) -> None:
        for required in constraints.requires:
            if not self.has_plugin(required):
                raise OrderError(
                    plugin,
                    f"plugin {name!r} requires {required!r}, which is not registered"
                    f"{did_you_mean(required, self._constraints)}",
                )

    def _adopt_implementations(self, name: str, overrides: Overrides, policy: ErrorPolicy) -> None:
        for caller in self.get_hookcallers(self.get_plugin(name)) or ():
            event = self._events.get(caller.name)
            if event is None:
                continue  # an optional hook that no hookspec declares
            own = [hookimpl for hookimpl in caller.get_hookimpls() if hookimpl.plugin_name == name]
            for hookimpl in own:
                who = f"plugin {name!r}{f' ({overrides.distribution})' if overrides.distribution else ''}"
                warn_of_deprecations(who, event, hookimpl.argnames)
                schedule = _schedule_of(hookimpl, event.name, overrides)
                self._implementations[hookimpl] = Implementation.of(
                    hookimpl, event, schedule=schedule, policy=policy, distribution=overrides.distribution
                )
            if self._ordered or len(own) > 1:
                self._reorder(caller)
        self._rebuild_emitters()

    def _reorder(self, caller: pluggy.HookCaller) -> None:
        """Apply `after` and `before` to pluggy's order, moving as little as possible."""
        wrappers: list[pluggy.HookImpl] = []
        others: list[pluggy.HookImpl] = []
        for hookimpl in reversed(caller.get_hookimpls()):
            (wrappers if hookimpl.wrapper or hookimpl.hookwrapper else others).append(hookimpl)
        self._put_newest_last(others)
        for group in (wrappers, others):
            names = list(dict.fromkeys(hookimpl.plugin_name for hookimpl in group))
            place = {name: index for index, name in enumerate(sort_by_constraints(names, self._ordered))}
            group.sort(key=lambda hookimpl: place[hookimpl.plugin_name])
        set_hookimpls(caller, [*reversed(others), *reversed(wrappers)])

    def _put_newest_last(self, hookimpls: list[pluggy.HookImpl]) -> None:
        """Move plugins with `newest_last` behind the others, in the order of their registration.

        `tryfirst` and `trylast` still come first.
        """
        places = {
            name: place for place, (name, own) in enumerate(self._constraints.items(), start=1) if own.newest_last
        }
        if any(hookimpl.plugin_name in places for hookimpl in hookimpls):
            hookimpls.sort(key=lambda own: (own.trylast - own.tryfirst, places.get(own.plugin_name, 0)))

    def unregister(self, plugin: Any = None, name: str | None = None) -> Any | None:
        """Unregister a plugin, at any time. It is not called from the next emission on. Returns the plugin."""
        with self._lock:
            known = self.get_name(plugin) if name is None else name
            dependants = [other for other, own in self._constraints.items() if known in own.requires]
            if dependants and known in self._constraints:
                raise OrderError(plugin, f"plugin {known!r} cannot be unregistered: {dependants[0]!r} requires it")
            return self._remove(plugin, known)

    def _remove(self, plugin: Any, name: str | None) -> Any | None:
        removed = super().unregister(plugin, name)
        if removed is not None and name is not None:
            self._constraints.pop(name, None)
            self._ordered.pop(name, None)
            self._overrides.pop(name, None)
            self._implementations = {h: i for h, i in self._implementations.items() if h.plugin_name != name}
            self._background.retire(name)
            self._rebuild_emitters()
        return removed

    def replace(self, name: str, plugin: Any) -> Any:
        """Replace the plugin called `name`, and return the old one.

        The new plugin takes its position in the call order. If it cannot be registered, the old one stays.
        """
        with self._lock:
            old = self.get_plugin(name)
            if old is None:
                known = did_you_mean(name, self._constraints)
                raise PluginError(plugin, f"there is no plugin {name!r} to replace{known}")
            overrides = self._overrides[name]
            places = {caller.name: caller.get_hookimpls() for caller in self.get_hookcallers(old) or ()}
            self._remove(old, name)
            try:
                self.register(plugin, name, overrides=overrides)
            except Exception:
                self.register(old, name, overrides=overrides)
                raise
            finally:
                self._take_places(name, places)
            return old

    def _take_places(self, name: str, places: Mapping[str, Sequence[pluggy.HookImpl]]) -> None:
        for event, before in places.items():
            caller: pluggy.HookCaller = getattr(self.hook, event)
            own = [hookimpl for hookimpl in caller.get_hookimpls() if hookimpl.plugin_name == name]
            index = next(i for i, hookimpl in enumerate(before) if hookimpl.plugin_name == name)
            if len(own) == 1 and own[0].wrapper == before[index].wrapper:
                hookimpls = [hookimpl for hookimpl in caller.get_hookimpls() if hookimpl is not own[0]]
                set_hookimpls(caller, [*hookimpls[:index], own[0], *hookimpls[index:]])
                self._reorder(caller)
        self._rebuild_emitters()

    def implementations_of(self, name: str) -> list[Implementation]:
        """The implementations of a plugin, in the order of the events."""
        own = [implementation for implementation in self._implementations.values() if implementation.plugin == name]
        return sorted(own, key=lambda implementation: list(self._events).index(implementation.event.name))

    def call_one(self, event: str, plugin: str) -> Any:
        """Call one plugin's implementation of an event without arguments. Its errors are raised unchanged."""
        own = (one for one in self.implementations_of(plugin) if one.event.name == event and not one.is_wrapper)
        return next((result for one in own if (result := one.hookimpl.function()) is not None), None)

    def report_failure(self, plugin: str, event: str, error: Exception) -> None:
        """Treat a plugin's invalid result as if it had raised this error: record it and apply its error policy."""
        implementation = next(one for one in self.implementations_of(plugin) if one.event.name == event)
        failures = self._handler.failed(implementation, error, None)
        if failures:
            raise_failures(event, failures)

    def failures_in(self, event: str) -> AbstractContextManager[Mapping[str, BaseException]]:
        """Collect the failures in an event within the block, by plugin, for an emitter that must not ignore them.

            with manager.failures_in("score_episodes") as failures:
                scores = manager.emit.score_episodes(batch=batch)

        Error policies apply as usual. Failures on other threads are not collected.
        """
        return self._handler.failures_in(event)

    def quarantined_in(self, event: str) -> dict[str, str]:
        """The quarantined plugins that implement this event, with the reason."""
        return {
            name: why
            for name, why in self.faults.quarantined.items()
            if any(implementation.event.name == event for implementation in self.implementations_of(name))
        }

    # -- emission -------------------------------------------------------------------------------------------------

    def _rebuild_emitters(self) -> None:
        with self._lock:
            for emitter in (*self._emitters.values(), *self._hook_emitters.values()):
                emitter.invalidate()

    def _build_emitter(self, event: Event, globals_: dict[str, Any], keep_results: bool) -> CodeType:
        self._background.raise_late_failures()
        caller: pluggy.HookCaller = getattr(self.hook, event.name)
        if not is_executor(self, self._execute) and not keep_results:
            # pluggy's monitoring is on, which sees only calls of `hook.<event>`.
            return compile_forward(event, lambda arguments: caller(**arguments), keep_results=False)
        called = self._called(event, caller.get_hookimpls())
        return self._dispatcher.compile(event, called, globals_, keep_results=keep_results)

    def _called(self, event: Event, hookimpls: Sequence[pluggy.HookImpl]) -> list[Implementation]:
        """The implementations to call, in order: not quarantined, and in scope on this rank."""
        known = (self._implementations.get(h) or Implementation.of(h, event) for h in reversed(hookimpls))
        return [
            implementation
            for implementation in known
            if implementation.plugin not in self.faults.quarantined
            and (self.rank == 0 or not implementation.driver_only)
        ]

    def _execute(
        self,
        hook_name: str,
        hook_impls: Sequence[pluggy.HookImpl],
        caller_kwargs: Mapping[str, object],
        firstresult: bool,
    ) -> Any:
        """Handle a call of `hook.<event>(...)`."""
        event = self._events.get(hook_name)
        if event is None:
            return self._dispatcher.multicall(hook_name, hook_impls, caller_kwargs, firstresult)
        if hook_impls == getattr(self.hook, hook_name).get_hookimpls():
            return self._hook_emitters[hook_name].function(self.emit, **caller_kwargs)
        # A subset of the plugins, or an extra function, for this call only.
        event.check_arguments(caller_kwargs)
        return self._dispatcher.function(event, self._called(event, hook_impls))(caller_kwargs)

    def add_hookcall_monitoring(self, before: Any, after: Any) -> Callable[[], None]:
        """Call functions before and after every event: pluggy's monitoring, extended to `emit`."""
        undo = super().add_hookcall_monitoring(before, after)
        self._rebuild_emitters()

        def undo_and_rebuild() -> None:
            undo()
            self._rebuild_emitters()

        return undo_and_rebuild

    def set_clocks(self, *, step: int | None = None, epoch: int | None = None, rollout: int | None = None) -> None:
        """Set how much is complete: 0 for a new run, or such as `step=1000, epoch=5` for a resumed one.

        Schedules count ticks up to these as done. Clocks that are not given stay unchanged.
        """
        counts = {"step": step, "epoch": epoch, "rollout": rollout}
        with self._lock:
            for implementation in self._implementations.values():
                complete = counts.get(implementation.event.clock)
                if complete is not None:
                    implementation.watch.skip_to(implementation.event.tick_before(complete))
            self._rebuild_emitters()

    # -- the end of a run -----------------------------------------------------------------------------------------

    def drain(self, seconds: float | None = None) -> list[str]:
        """Wait for background calls. Returns the plugins that did not finish in time."""
        return self._background.drain(seconds)

    def close(self) -> None:
        """Finish background calls within the deadline, drop the rest, and raise their failures as policies require."""
        self._background.close()
        self._background.raise_late_failures()

    def __enter__(self) -> PluginManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- timing ---------------------------------------------------------------------------------------------------

    @property
    def timer(self) -> PluginTimer | None:
        """The time of each plugin in each event; None before `enable_timing`."""
        return self._dispatcher.timer

    def enable_timing(self) -> PluginTimer:
        """Start to measure the time of every plugin in every event."""
        if self._dispatcher.timer is None:
            self._dispatcher.timer = self._background.timer = PluginTimer()
            self._rebuild_emitters()
        return self._dispatcher.timer


def _schedule_of(hookimpl: pluggy.HookImpl, event: str, overrides: Overrides) -> Schedule | None:
    if event in overrides.event_schedules:
        return overrides.event_schedules[event]
    options: Mapping[str, Any] = hookimpl.opts
    declared: Schedule | None = options.get("schedule")
    return declared and (overrides.schedule or declared)
