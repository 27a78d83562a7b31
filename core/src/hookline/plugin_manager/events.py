"""Events as the manager knows them: the signature, options and documented contract of each hookspec."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pluggy

from hookline.errors import EmitError, did_you_mean
from hookline_hookspecs import Clock, Kind, Scope

__all__ = ["Event", "EventContract", "parse_contract"]

_LABEL = re.compile(r"(When|Emitted by|Where|Args|Returns|Added):\s*(.*)")
_ARGUMENT = re.compile(r"    (\w+): (.*)")


@dataclass(frozen=True)
class EventContract:
    """What an event's docstring promises. A field is empty when the docstring does not say it."""

    summary: str = ""
    when: str = ""
    emitted_by: str = ""
    where: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    returns: str = ""
    added: str = ""


def parse_contract(doc: str) -> EventContract:
    """Read the labelled lines of a docstring."""
    summary, _, rest = doc.partition("\n")
    found: dict[str, str] = {}
    arguments: dict[str, str] = {}
    for line in rest.splitlines():
        label = _LABEL.fullmatch(line)
        argument = _ARGUMENT.fullmatch(line)
        if label:
            found[label[1]] = label[2]
        elif argument:
            arguments[argument[1]] = argument[2]
    return EventContract(
        summary=summary,
        when=found.get("When", ""),
        emitted_by=found.get("Emitted by", ""),
        where=found.get("Where", ""),
        arguments=arguments,
        returns=found.get("Returns", ""),
        added=found.get("Added", ""),
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
    """What a result must be, besides None."""
    arguments: tuple[str, ...]
    defaults: Mapping[str, Any]
    """Values of the arguments that an emitter may leave out."""
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
            # A spec marked by pluggy's own marker says no kind: its results are kept, as pluggy does.
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
        """Raise when an implementation returned what the event cannot use."""
        if result is not None and not isinstance(result, self.returns):
            raise TypeError(
                f"{self.name} returned a {type(result).__name__}: it must return a {self.returns.__name__}, or None"
            )

    def check_arguments(self, given: Mapping[str, object]) -> None:
        """Raise an error that helps when an emitter's arguments are not the event's."""
        for name in given:
            if name not in self.arguments:
                raise EmitError(
                    f"event {self.signature} was emitted with an argument {name!r} that it does not take"
                    f"{did_you_mean(name, set(self.arguments) - set(given))}"
                )
        missing = [name for name in self.arguments if name not in given and name not in self.defaults]
        if missing:
            raise EmitError(f"event {self.signature} was emitted without {', '.join(map(repr, missing))}")
