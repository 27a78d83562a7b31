"""A listing of the installed plugins, and the tables at the end of a run: failures of plugins, and their time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hookline.option_models import is_pydantic_model
from hookline.plugin_manager.faults import FaultLedger
from hookline.plugin_manager.loading import PluginRecord
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.timing import PluginTimer
from hookline_hookspecs.redaction import redact

__all__ = ["PluginListing", "list_plugins", "print_summary"]

MOST_ROWS: Final = 15
"""Rows of the timing table. The rest is added up below it."""
MOST_COLUMNS: Final = 1000


@dataclasses.dataclass(frozen=True)
class PluginListing:
    """One installed plugin."""

    name: str
    distribution: str
    version: str
    origin: str
    """Its distribution and version; for a plugin of the project its module or file, and the setting that names it."""
    state: str
    """`active`, `disabled`, `failed` or `quarantined`."""
    reason: str
    """Why it is not active."""
    summary: str
    events: list[str]
    """The events that it implements; empty for a plugin that is not imported."""
    schedules: dict[str, str]
    """Its schedule in each event that has one."""
    after: list[str]
    before: list[str]
    requires: list[str]
    options: dict[str, Any]
    """Its options with defaults, and its schedule and error policy from the settings. Secrets are redacted."""


def list_plugins(manager: PluginManager, records: Iterable[PluginRecord]) -> list[PluginListing]:
    """All installed plugins, in the order of the records."""
    return [_listing(manager, record) for record in records]


def _listing(manager: PluginManager, record: PluginRecord) -> PluginListing:
    from pydantic_core import to_jsonable_python

    state, reason = record.state, record.reason
    implementations = manager.implementations_of(record.name) if state == "active" else []
    quarantined = manager.faults.quarantined.get(record.name)
    return PluginListing(
        name=record.name,
        distribution=record.found.distribution,
        version=record.found.version,
        origin=record.found.origin,
        state="quarantined" if quarantined else state,
        reason=quarantined or reason,
        summary=record.summary,
        events=list(dict.fromkeys(own.event.name for own in implementations)),
        schedules={own.event.name: str(own.schedule) for own in implementations if own.schedule is not None},
        after=list(record.constraints.after),
        before=list(record.constraints.before),
        requires=list(record.constraints.requires),
        options=to_jsonable_python(redact({**_as_dictionary(record.options), **record.overrides}), fallback=repr),
    )


def _as_dictionary(options: Any) -> dict[str, Any]:
    """Options by name. Secrets keep their pydantic types, so that `redact` recognises them."""
    if is_pydantic_model(type(options)):
        return dict(options.model_dump())
    return dataclasses.asdict(options) if dataclasses.is_dataclass(options) and not isinstance(options, type) else {}


def print_summary(manager: PluginManager, console: Console | None = None) -> None:
    """Print failures and timings; nothing if there are none."""
    console = console or Console(stderr=True)
    if manager.faults:
        _print_table(_faults_table(manager.faults), console)
    if manager.timer is not None and manager.timer.timings:
        _print_table(_timings_table(manager.timer), console)


def _print_table(table: Table, console: Console) -> None:
    """Print a table without cutting names off. It may be wider than the terminal."""
    for column in table.columns:
        if column.no_wrap:
            column.min_width = max(map(cell_len, map(str, (column.header, *column.cells))))
    least = Measurement.get(console, console.options.update(width=MOST_COLUMNS), table).minimum
    table.width = least if least > console.width else None
    console.print(table, crop=False, no_wrap=True, overflow="ignore")


def _faults_table(ledger: FaultLedger) -> Table:
    table = Table(title="Plugins with faults", title_justify="left")
    for heading in ("plugin", "event", "times"):
        table.add_column(heading, justify="right" if heading == "times" else "left", no_wrap=True)
    table.add_column("what happened", overflow="fold", min_width=20)
    for failure in ledger.described():
        # As `Text`: a message may have brackets, which are markup in a string.
        table.add_row(*(Text("" if value is None else str(value)) for value in failure.values()))
    return table


def _timings_table(timer: PluginTimer) -> Table:
    table = Table(title="Time spent in plugins", title_justify="left")
    for heading in ("plugin", "event", "thread"):
        table.add_column(heading, no_wrap=True)
    for heading in ("calls", "total ms", "mean µs", "longest µs"):
        table.add_column(heading, justify="right", no_wrap=True)
    by_cost = sorted(timer.timings.values(), key=lambda timing: -timing.total_ns)
    if len(by_cost) > MOST_ROWS:
        rest = by_cost[MOST_ROWS:]
        table.caption = f"and {len(rest)} more, {sum(own.total_ns for own in rest) / 1e6:,.1f} ms in all"
        table.caption_justify = "left"
    for timing in by_cost[:MOST_ROWS]:
        table.add_row(
            Text(timing.plugin),
            timing.event,
            "background" if timing.background else "training",
            f"{timing.calls:,}",
            f"{timing.total_ns / 1e6:,.1f}",
            f"{timing.total_ns / timing.calls / 1e3:,.1f}",
            f"{timing.longest_ns / 1e3:,.1f}",
        )
    return table
