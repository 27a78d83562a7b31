"""`Implementation`: one plugin's implementation of one event, and its validation against the event."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pluggy

from hookline.errors import PluginError, did_you_mean
from hookline.plugin_manager.events import Event
from hookline.plugin_manager.faults import ErrorPolicy
from hookline_hookspecs import Schedule, Scope, Watch

__all__ = ["Failed", "Implementation", "check_implementation"]


@dataclass(eq=False, slots=True)
class Implementation:
    """A pluggy implementation with a schedule, rank scope, background flag, error policy and failure count."""

    hookimpl: pluggy.HookImpl
    event: Event
    watch: Watch
    """Its schedule, and how far that has been looked at."""
    background: bool
    driver_only: bool
    policy: ErrorPolicy
    distribution: str | None = None
    """The plugin's distribution and version, for messages."""
    streak: int = 0
    """Failures in a row."""
    has_failed: bool = False
    """Whether it ever failed. From then on, successes reset the streak."""

    @classmethod
    def of(
        cls,
        hookimpl: pluggy.HookImpl,
        event: Event,
        *,
        schedule: Schedule | None = None,
        policy: ErrorPolicy = "raise",
        distribution: str | None = None,
    ) -> Implementation:
        options: Mapping[str, Any] = hookimpl.opts
        return cls(
            hookimpl=hookimpl,
            event=event,
            watch=Watch(schedule),
            background=bool(options.get("background")),
            driver_only="driver" in (event.scope, options.get("scope")),
            policy=policy,
            distribution=distribution,
        )

    @property
    def plugin(self) -> str:
        return self.hookimpl.plugin_name

    @property
    def schedule(self) -> Schedule | None:
        return self.watch.schedule

    @property
    def is_wrapper(self) -> bool:
        return bool(self.hookimpl.wrapper or self.hookimpl.hookwrapper)

    @property
    def argument_source(self) -> str:
        """The arguments of a call as Python source, where the event's arguments are local variables."""
        optional = [name for name in self.hookimpl.kwargnames if name in self.event.arguments]
        return ", ".join([*self.hookimpl.argnames, *(f"{name}={name}" for name in optional)])


Failed = Callable[[Implementation, BaseException, list[Exception] | None], list[Exception] | None]
"""`FaultHandler.failed`: records a failure, and adds to the list what must be raised after all calls."""


def check_implementation(hookimpl: pluggy.HookImpl, event: Event) -> None:
    """Raise a `PluginError` if an implementation does not fit its event."""
    options: Mapping[str, Any] = hookimpl.opts
    plugin, where = hookimpl.plugin, f"plugin {hookimpl.plugin_name!r}: {event.name}"
    for name in hookimpl.argnames:
        if name not in event.arguments:
            raise PluginError(
                plugin,
                f"{where} has an argument {name!r} that the event does not have"
                f"{did_you_mean(name, event.arguments)}; the event is {event.signature}",
            )
    required_by_name = [
        parameter.name
        for parameter in _parameters(hookimpl, event, where)
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    if required_by_name:
        raise PluginError(plugin, f"{where} has keyword-only arguments ({', '.join(required_by_name)}): remove the '*'")
    if options.get("schedule") is not None and event.clock == "none":
        raise PluginError(plugin, f"{where} has a schedule, but the event has no clock")
    if options.get("background"):
        _check_background(hookimpl, event, where)
    scope = options.get("scope")
    if scope is not None and scope not in get_args(Scope):
        raise PluginError(plugin, f"{where} has scope {scope!r}{did_you_mean(str(scope), get_args(Scope))}")
    if scope not in (None, "driver", event.scope):
        raise PluginError(
            plugin,
            f"{where} has scope {scope!r}, but the event's is {event.scope!r}: "
            "an implementation may narrow it to 'driver', never widen it",
        )


def _parameters(hookimpl: pluggy.HookImpl, event: Event, where: str) -> Sequence[inspect.Parameter]:
    """The parameters of an implementation, without `self`, which a method must have."""
    function = hookimpl.function
    if inspect.ismethod(function):
        first = next(iter(inspect.signature(function.__func__).parameters), None)
        if first is None or first in event.arguments:
            raise PluginError(hookimpl.plugin, f"{where} is a method without `self`: put `self` before its arguments")
    return list(inspect.signature(function).parameters.values())


def _check_background(hookimpl: pluggy.HookImpl, event: Event, where: str) -> None:
    if event.kind != "notify":
        raise PluginError(
            hookimpl.plugin,
            f"{where} runs in the background, but the event is of kind {event.kind} and needs its result at once",
        )
    if hookimpl.wrapper or hookimpl.hookwrapper:
        raise PluginError(hookimpl.plugin, f"{where} is a wrapper and cannot run in the background")
