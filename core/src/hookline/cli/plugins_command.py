"""`hookline plugins`: the plugins, their state, and why some are not active."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from hookline import parsing
from hookline.cli.columns import aligned, print_lines
from hookline.errors import HooklineError, did_you_mean
from hookline.plugin_manager.loading import PluginLoader, PluginRecord
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import read_settings
from hookline_hookspecs.errors import error_message

if TYPE_CHECKING:
    from hookline.plugin_manager.listing import PluginListing

__all__ = ["plugins"]

STYLES = {"active": "green", "disabled": "dim", "failed": "red", "quarantined": "yellow"}


def plugins(
    *,
    hook: str | None = None,
    verbose: Annotated[bool, parsing.Parameter(name=("--verbose", "-v"), negative="")] = False,
    available: Annotated[bool, parsing.Parameter(negative="")] = False,
    markdown: Annotated[bool, parsing.Parameter(negative="")] = False,
    as_json: Annotated[bool, parsing.Parameter(name="--json", negative="")] = False,
    plugin: Annotated[tuple[str, ...], parsing.Parameter(name="-p", negative="")] = (),
    option: Annotated[tuple[str, ...], parsing.Parameter(name="-o", negative="")] = (),
) -> None:
    """Show the plugins of this environment and project, and why some are not active.

    Parameters
    ----------
    hook
        Only plugins that implement this event, in the order in which they are called.
    verbose
        Show where each comes from, its events, order and options.
    available
        Show the directory of plugins that can be installed instead.
    markdown
        Print the directory as Markdown.
    as_json
        Print JSON.
    plugin
        Turn a plugin off (`-p no:NAME`) or on (`-p NAME`, `-p file.py:NAME`), as for a run.
    option
        Set an option (`-o PLUGIN.KEY=VALUE`), as for a run.
    """
    if available:
        _print_directory(markdown=markdown, as_json=as_json)
        return
    manager = PluginManager()
    if hook is not None and hook not in manager.events:
        raise HooklineError(f"there is no event {hook!r}{did_you_mean(hook, manager.events)}")
    # As a run would, but problems are collected, not raised.
    loader = PluginLoader(manager, read_settings(plugin_arguments=plugin, option_arguments=option))
    loader.prepare()
    loader.register()
    problems = [str(fault) for fault in loader.faults]
    if loader.order_error is not None:
        problems.append(error_message(loader.order_error))
    records = loader.records if hook is None else _in_call_order(manager, hook, loader.records)
    if as_json or verbose:
        _print_details(manager, records, problems, as_json=as_json)
    else:
        _print_lines(records, problems)
    if problems:
        sys.exit(1)


def _print_directory(*, markdown: bool, as_json: bool) -> None:
    from hookline.cli.plugin_directory import available_plugins, directory_as_markdown, directory_rows

    if markdown:
        print(directory_as_markdown())
    elif as_json:
        print(json.dumps([entry._asdict() for entry in available_plugins()], indent=2))
    else:
        print_lines(aligned([("install", "kind", "installed", "what it does"), *directory_rows()]))


def _in_call_order(manager: PluginManager, event: str, records: Sequence[PluginRecord]) -> list[PluginRecord]:
    order = [hookimpl.plugin_name for hookimpl in reversed(getattr(manager.hook, event).get_hookimpls())]
    return sorted((record for record in records if record.name in order), key=lambda own: order.index(own.name))


def _print_lines(records: Sequence[PluginRecord], problems: Sequence[str]) -> None:
    if records:
        print_lines(aligned([(own.name, own.found.version or "-", own.state, own.summary) for own in records]))
    else:
        print("No plugin is installed, or none implements that event. `hookline new-plugin NAME` creates one.")
    for line in (*_reasons(records), *(f"problem {problem}" for problem in problems)):
        print(line)


def _reasons(records: Sequence[PluginRecord]) -> list[str]:
    return [
        f"{record.name} {'has' if record.state == 'failed' else 'is'} {record.state}: {record.reason}"
        for record in records
        if record.reason
    ]


def _print_details(
    manager: PluginManager, records: Sequence[PluginRecord], problems: Sequence[str], *, as_json: bool
) -> None:
    from dataclasses import asdict

    from hookline.plugin_manager.listing import list_plugins

    listings = list_plugins(manager, records)
    if as_json:
        print(json.dumps({"plugins": [asdict(listing) for listing in listings], "problems": problems}, indent=2))
        return
    _print_table(listings)
    for line in (*_reasons(records), *(f"problem {problem}" for problem in problems)):
        print(line)


def _print_table(listings: Sequence[PluginListing]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    # Few columns, with several lines each, to fit a terminal of 80 columns.
    table = Table(show_lines=True)
    for heading in ("plugin", "state", "events", "order and options"):
        table.add_column(heading, overflow="fold")
    for listing in listings:
        table.add_row(
            f"[bold]{escape(listing.name)}[/]\n{escape(listing.origin)}\n{escape(listing.summary)}",
            f"[{STYLES[listing.state]}]{listing.state}[/]",
            escape("\n".join(f"{name} {listing.schedules.get(name, '')}".rstrip() for name in listing.events)),
            escape("\n".join([*_order(listing), *_options(listing)])),
        )
    Console().print(table)


def _order(listing: PluginListing) -> list[str]:
    relations = {"after": listing.after, "before": listing.before, "requires": listing.requires}
    return [f"{relation} {', '.join(names)}" for relation, names in relations.items() if names]


def _options(listing: PluginListing) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in listing.options.items()]
