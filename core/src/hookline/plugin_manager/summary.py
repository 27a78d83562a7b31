"""The tables at the end of a run: failures of plugins, and the time spent in them."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from hookline.plugin_manager.faults import FaultLedger
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.timing import PluginTimer

__all__ = ["print_summary"]

MOST_ROWS: Final = 15
"""Rows of the timing table. The rest is added up below it."""
MOST_COLUMNS: Final = 1000


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
    for fault in ledger.faults.values():
        table.add_row(fault.plugin, fault.event, str(fault.count), fault.error)
    for plugin, count in sorted(ledger.dropped.items()):
        table.add_row(plugin, "", str(count), "background calls were dropped")
    for plugin, why in ledger.quarantined.items():
        table.add_row(plugin, "", "", f"quarantined: {why}")
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
            timing.plugin,
            timing.event,
            "background" if timing.background else "training",
            f"{timing.calls:,}",
            f"{timing.total_ns / 1e6:,.1f}",
            f"{timing.total_ns / timing.calls / 1e3:,.1f}",
            f"{timing.longest_ns / 1e3:,.1f}",
        )
    return table
