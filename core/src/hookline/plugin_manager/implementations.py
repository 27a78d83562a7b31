"""One plugin's implementation of one event, checked against the event it implements."""

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
    """A pluggy implementation with what ours adds: schedule, ranks, background, and how it has fared."""

    hookimpl: pluggy.HookImpl
    event: Event
    watch: Watch
    """Its schedule, and how far that has been looked at."""
    background: bool
    driver_only: bool
    policy: ErrorPolicy
    distribution: str | None = None
    """The plugin's distribution and its version, for messages."""
    streak: int = 0
    """Failures in a row."""
    has_failed: bool = False
    """It failed once: from then on its successes count too, for they end a streak."""

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
        """The arguments of a call as Python source, for a place where the event's arguments are variables."""
        optional = [name for name in self.hookimpl.kwargnames if name in self.event.arguments]
        return ", ".join([*self.hookimpl.argnames, *(f"{name}={name}" for name in optional)])


Failed = Callable[[Implementation, BaseException, list[Exception] | None], list[Exception] | None]
"""Records a failure; what it adds to the list is to be raised. It raises what interrupts the run from outside."""


def check_implementation(hookimpl: pluggy.HookImpl, event: Event) -> None:
    """Raise an error that says what is wrong with an implementation, and which name was probably meant."""
    options: Mapping[str, Any] = hookimpl.opts
    plugin, where = hookimpl.plugin, f"plugin {hookimpl.plugin_name!r}: {event.name}"
    for name in hookimpl.argnames:
        if name not in event.arguments:
            raise PluginError(
                plugin,
                f"{where} asks for an argument {name!r} that the event does not have"
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
        raise PluginError(plugin, f"{where} has a schedule, but the event has no clock to count by")
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
    """What an implementation takes besides the plugin itself, which a method must take."""
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
            f"{where} runs in the background, but the event is of kind {event.kind}: its result would come too late",
        )
    if hookimpl.wrapper or hookimpl.hookwrapper:
        raise PluginError(hookimpl.plugin, f"{where} is a wrapper and cannot run in the background")
