"""`hookline hooks`: the event reference, made from the hookspecs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hookline.errors import HooklineError, did_you_mean
from hookline.plugin_manager.events import Event, parse_contract
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


def hooks(event: str | None = None, /, *, markdown: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Show the events that a plugin can implement.

    Parameters
    ----------
    event
        Show all about this one.
    markdown
        Print the whole reference as Markdown.
    """
    events = PluginManager().events
    console = Console()
    if event is not None:
        if event not in events:
            raise HooklineError(f"there is no event {event!r}{did_you_mean(event, events)}")
        console.print("\n".join(_event_lines(events[event])), markup=False, highlight=False, soft_wrap=True)
    elif markdown:
        print(events_as_markdown())
    else:
        console.print(_table(list(events.values())))


def events_as_markdown() -> str:
    """The reference of all events as one Markdown page."""
    lines = [
        "# Events",
        "",
        "Every moment of a run that a plugin can implement, by phase. This page is generated from the hookspecs by",
        "`make docs`; `hookline hooks EVENT` shows the same in a terminal.",
        "",
        "| kind | what becomes of results |",
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
    contract = parse_contract(event.doc)
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
        yield f"  `{name}`: {meaning}"
    yield f"Returns: {contract.returns}"
    yield f"Added: {contract.added}"


def _clock(event: Event) -> str:
    if event.clock == "none":
        return "none"
    return f"{event.clock} ({event.clock}s {'before this one' if event.starts else 'that are complete'})"


def _table(events: list[Event]) -> Table:
    table = Table(caption="hookline hooks EVENT shows all about one", caption_justify="left")
    table.add_column("event", no_wrap=True)
    table.add_column("kind")
    table.add_column("clock")
    table.add_column("what it says")
    for phase, members in itertools.groupby(events, key=lambda event: event.phase):
        table.add_section()
        table.add_row(f"[bold]{phase}[/]")
        for event in members:
            table.add_row(f"  {event.name}", event.kind, event.clock, escape(parse_contract(event.doc).summary))
    return table
