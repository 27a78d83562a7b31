"""`hookline hooks`: the event reference, generated from the hookspecs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Annotated, Any

from hookline import parsing
from hookline.cli.columns import aligned, print_lines
from hookline.errors import HooklineError, did_you_mean
from hookline.plugin_manager.events import Event, Lifetime
from hookline.plugin_manager.manager import PluginManager

__all__ = ["events_as_markdown", "hooks"]

KINDS = {
    "notify": "results are ignored",
    "collect": "every result is kept, with the plugin it came from",
    "decide": "the first result that is not None wins",
}
CLOCKS = {
    "step": "gradient steps that are complete",
    "epoch": "epochs that are complete",
    "rollout": "rollouts that the worker has made",
    "none": "nothing: the event takes no schedule",
}
SCOPES = {"driver": "rank 0 only", "every_rank": "every rank", "worker": "every process that emits it"}


def hooks(
    event: str | None = None,
    /,
    *,
    markdown: Annotated[bool, parsing.Parameter(negative="")] = False,
    as_json: Annotated[bool, parsing.Parameter(name="--json", negative="")] = False,
) -> None:
    """Show the events that a plugin can implement.

    Parameters
    ----------
    event
        Show the details of this event.
    markdown
        Print the whole reference as Markdown.
    as_json
        Print all events, or this one, as JSON: kind, clock, scope, arguments, and the versions that have them.
    """
    events = PluginManager().events
    if event is not None and event not in events:
        raise HooklineError(f"there is no event {event!r}{did_you_mean(event, events)}")
    if as_json:
        shown = events if event is None else {event: events[event]}
        print(json.dumps({name: _as_data(own) for name, own in shown.items()}, indent=2))
    elif event is not None:
        print("\n".join(_event_lines(events[event])))
    elif markdown:
        print(events_as_markdown())
    else:
        print_lines(_lines(list(events.values())))


def events_as_markdown() -> str:
    """The reference of all events as one Markdown page."""
    lines = [
        "# Events",
        "",
        "Every event that a plugin can implement, by phase. This page is generated from the hookspecs by",
        "`make docs`; `hookline hooks EVENT` shows the same in a terminal.",
        "",
        "| kind | results |",
        "|---|---|",
        *(f"| {kind} | {meaning} |" for kind, meaning in KINDS.items()),
        "",
        "| clock | what a schedule on the event counts |",
        "|---|---|",
        *(f"| {clock} | {meaning} |" for clock, meaning in CLOCKS.items()),
        "",
        "`@hookimpl(every=1)` on `on_epoch_end` is called after every epoch, and `every=10` after the tenth.",
        "At the start of an epoch, step or rollout the clock counts those before it: `every=10` on `on_epoch_start` is",
        "called before the eleventh, `every=1` before all but the first, `schedule=Every(1, start=-1)` before all.",
        "Evaluations and checkpoints count the epoch in which they are announced. A clock may jump: a call is due",
        "once when one or more due ticks were passed.",
    ]
    for phase, events in itertools.groupby(PluginManager().events.values(), key=lambda event: event.phase):
        lines += ["", f"## {phase}"]
        for event in events:
            heading, *facts = _event_lines(event)
            lines += ["", f"### `{heading}`", "", facts[1], "", *(f"- {fact.strip()}" for fact in facts[3:])]
    return "\n".join(lines)


def _event_lines(event: Event) -> Iterator[str]:
    contract = event.contract
    yield event.signature
    yield ""
    yield contract.summary
    yield ""
    yield f"Kind: {event.kind} ({KINDS[event.kind]})"
    yield f"Clock: {_clock(event)}"
    yield f"Scope: {event.scope} ({SCOPES[event.scope]})"
    yield f"When: {contract.when}"
    yield f"Emitted by: {contract.emitted_by}"
    yield f"Where: {contract.where}"
    for name, meaning in contract.arguments.items():
        own = contract.lifetime_of(name)
        yield f"  `{name}`: {meaning}{f' {_versions(own)}' if own != contract.lifetime else ''}"
    yield f"Returns: {contract.returns}"
    yield _versions(contract.lifetime)


def _versions(lifetime: Lifetime) -> str:
    until = f" Until: {lifetime.until}, use {lifetime.instead}." if lifetime.until else ""
    return f"Added: {lifetime.added}.{until}"


def _as_data(event: Event) -> dict[str, Any]:
    contract = event.contract
    return {
        "phase": event.phase,
        "summary": contract.summary,
        "kind": event.kind,
        "clock": event.clock,
        "scope": event.scope,
        **contract.lifetime._asdict(),
        "arguments": {name: contract.lifetime_of(name)._asdict() for name in event.arguments},
    }


def _clock(event: Event) -> str:
    if event.clock == "none":
        return "none"
    return f"{event.clock} ({event.clock}s {'before this one' if event.starts else 'that are complete'})"


def _lines(events: list[Event]) -> Iterator[str]:
    lines = aligned([(f"  {own.name}", own.kind, own.clock, own.contract.summary) for own in events])
    for phase, members in itertools.groupby(zip(events, lines, strict=True), key=lambda pair: pair[0].phase):
        yield phase
        yield from (line for _, line in members)
    yield "hookline hooks EVENT shows the details of one"
