"""`Event`: what a hookspec declares. `Implementation`: a plugin's implementation of it, validated against the event."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, get_args

import pluggy

from hookline.errors import EmitError, PluginError, did_you_mean
from hookline.plugin_manager.compatibility import missing_argument
from hookline.plugin_manager.faults import ErrorPolicy
from hookline_hookspecs import Clock, Kind, Schedule, Scope, Watch

__all__ = [
    "Event",
    "EventContract",
    "Failed",
    "Implementation",
    "Lifetime",
    "check_implementation",
    "parse_contract",
]

_LABEL = re.compile(r"(When|Emitted by|Where|Args|Returns|Added|Until):\s*(.*)")
_ARGUMENT = re.compile(r" {4}(\w+): (.*)")
_LIFETIME = re.compile(r"\s*\b(Added: [\d.]*\d\.|Until: [\d.]*\d, use .+?\.(?=\s|$))")


class Lifetime(NamedTuple):
    """Since when an event or argument is there, and until when it stays."""

    added: str = ""
    """The version that added it, such as "0.1"."""
    until: str = ""
    """The version that will take it away; empty if it stays."""
    instead: str = ""
    """What to use instead of it."""

    @classmethod
    def parse(cls, added: str, until: str) -> Lifetime:
        """`added` is "0.1.", `until` is "0.3, use on_epoch_end." or empty."""
        version, _, instead = until.removesuffix(".").partition(", use ")
        return cls(added.removesuffix("."), version, instead)


@dataclass(frozen=True)
class EventContract:
    """The labelled lines of an event's docstring. A missing one is an empty field."""

    summary: str = ""
    when: str = ""
    emitted_by: str = ""
    where: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    lifetime: Lifetime = field(default_factory=Lifetime)
    argument_lifetimes: Mapping[str, Lifetime] = field(default_factory=dict)
    """For the arguments that were added later than the event, or go earlier."""

    def lifetime_of(self, argument: str) -> Lifetime:
        return self.argument_lifetimes.get(argument, self.lifetime._replace(until="", instead=""))


@cache
def parse_contract(doc: str) -> EventContract:
    """Read the labelled lines of a docstring. A line that is indented further continues the one before it."""
    summary, _, rest = doc.partition("\n")
    found: dict[str, str] = {}
    arguments: dict[str, str] = {}
    label = argument = ""
    for line in rest.splitlines():
        if labelled := _LABEL.fullmatch(line):
            label, argument = labelled[1], ""
            found[label] = labelled[2]
        elif label == "Args" and (named := _ARGUMENT.fullmatch(line)):
            argument = named[1]
            arguments[argument] = named[2]
        elif label and line.strip():
            own, name = (arguments, argument) if argument else (found, label)
            own[name] = f"{own[name]} {line.strip()}".strip()
    lifetime = Lifetime.parse(found.get("Added", ""), found.get("Until", ""))
    lifetimes: dict[str, Lifetime] = {}
    for name, text in arguments.items():
        labels = dict(label.split(": ", 1) for label in _LIFETIME.findall(text))
        if labels:
            lifetimes[name] = Lifetime.parse(labels.get("Added", lifetime.added), labels.get("Until", ""))
            arguments[name] = _LIFETIME.sub("", text)
    return EventContract(
        summary=summary,
        when=found.get("When", ""),
        emitted_by=found.get("Emitted by", ""),
        where=found.get("Where", ""),
        arguments=arguments,
        returns=found.get("Returns", ""),
        lifetime=lifetime,
        argument_lifetimes=lifetimes,
    )


@dataclass(frozen=True)
class Event:
    """One event, as its hookspec declares it."""

    name: str
    phase: str
    kind: Kind
    clock: Clock
    starts: bool
    """It is at the start of an epoch, step or rollout, which its clock does not count yet."""
    scope: Scope
    returns: type
    """The type of a result that is not None."""
    arguments: tuple[str, ...]
    defaults: Mapping[str, Any]
    """Defaults of optional arguments."""
    doc: str

    @classmethod
    def of(cls, caller: pluggy.HookCaller) -> Event:
        spec = caller.spec
        assert spec is not None, f"{caller.name} has no hookspec"
        options: Mapping[str, Any] = spec.opts
        hidden = [name for name in (*spec.argnames, *spec.kwargnames) if name.startswith("_")]
        if hidden:
            raise ValueError(f"event {caller.name}: its argument {hidden[0]!r} must not begin with an underscore")
        return cls(
            name=caller.name,
            phase=spec.namespace.__name__.rpartition(".")[2],
            # A spec with pluggy's own marker has no kind: its results are collected, as pluggy does.
            kind=options.get("kind", "decide" if options.get("firstresult") else "collect"),
            clock=options.get("clock", "none"),
            starts=options.get("starts", False),
            scope=options.get("scope", "every_rank"),
            returns=options.get("returns", object),
            arguments=(*spec.argnames, *spec.kwargnames),
            defaults=dict(spec.kwargdefaults),
            doc=inspect.getdoc(spec.function) or "",
        )

    @property
    def contract(self) -> EventContract:
        """The labelled lines of its docstring."""
        return parse_contract(self.doc)

    @property
    def clock_source(self) -> str:
        """The number of steps, epochs or rollouts that are complete, as Python source over the event's arguments."""
        if self.clock == "rollout":
            return "context.step"  # an argument of that name is the rollout itself
        if self.clock == "epoch":
            # The session raises `state.step` when a step ends, and `state.epoch` only when the next epoch starts.
            return "state.epoch" if self.starts else "state.epoch + 1"
        return "step" if "step" in self.arguments else "state.step"

    def read_clock(self, arguments: Mapping[str, Any]) -> int:
        """The clock's time, from the arguments of an emission."""
        return int(eval(self.clock_source, {}, dict(arguments)))

    def tick_before(self, complete: int) -> int:
        """The last tick that has been shown when so many steps, epochs or rollouts are complete."""
        return complete - 1 if self.starts or not complete else complete

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"

    def check_result(self, result: object) -> None:
        """Raise if an implementation returned a value of the wrong type."""
        if result is not None and not isinstance(result, self.returns):
            raise TypeError(
                f"{self.name} returned a {type(result).__name__}: it must return a {self.returns.__name__}, or None"
            )

    def check_arguments(self, given: Mapping[str, object]) -> None:
        """Raise if an emission has unknown or missing arguments."""
        for name in given:
            if name not in self.arguments:
                raise EmitError(
                    f"event {self.signature} was emitted with an argument {name!r} that it does not take"
                    f"{did_you_mean(name, set(self.arguments) - set(given))}"
                )
        missing = [name for name in self.arguments if name not in given and name not in self.defaults]
        if missing:
            raise EmitError(f"event {self.signature} was emitted without {', '.join(map(repr, missing))}")


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
            raise missing_argument(hookimpl, event, name)
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
