"""`hookline plugins`: the installed plugins, their state, and why some are not active."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hookline.errors import HooklineError, did_you_mean
from hookline.plugin_manager.listing import PluginListing, list_plugins
from hookline.plugin_manager.loading import PluginLoader
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import read_settings
from hookline_hookspecs.errors import error_message

__all__ = ["plugins"]

STYLES = {"active": "green", "disabled": "dim", "failed": "red", "quarantined": "yellow"}


def plugins(
    *,
    hook: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    plugin: Annotated[tuple[str, ...], Parameter(name="-p", negative="")] = (),
    option: Annotated[tuple[str, ...], Parameter(name="-o", negative="")] = (),
) -> None:
    """Show the installed plugins, and why some are not active.

    Parameters
    ----------
    hook
        Only plugins that implement this event, in the order in which they are called.
    as_json
        Print JSON.
    plugin
        Turn a plugin off (`-p no:NAME`) or on (`-p NAME`), as for a run.
    option
        Set an option (`-o PLUGIN.KEY=VALUE`), as for a run.
    """
    manager = PluginManager()
    if hook is not None and hook not in manager.events:
        raise HooklineError(f"there is no event {hook!r}{did_you_mean(hook, manager.events)}")
    listings, problems = _load(manager, plugin, option)
    if hook is not None:
        listings = _in_call_order(manager, hook, listings)
    if as_json:
        print(json.dumps({"plugins": [asdict(listing) for listing in listings], "problems": problems}, indent=2))
    else:
        _print(listings, problems)
    if problems:
        sys.exit(1)


def _load(
    manager: PluginManager, plugin_arguments: Sequence[str], option_arguments: Sequence[str]
) -> tuple[list[PluginListing], list[str]]:
    """Load plugins as a run would, but collect problems instead of raising them."""
    loader = PluginLoader(manager, read_settings(plugin_arguments=plugin_arguments, option_arguments=option_arguments))
    loader.prepare()
    loader.register()
    problems = [*loader.faults, *([] if loader.order_error is None else [loader.order_error])]
    return list_plugins(manager, loader.records), [
        error_message(p) if isinstance(p, Exception) else str(p) for p in problems
    ]


def _in_call_order(manager: PluginManager, event: str, listings: Sequence[PluginListing]) -> list[PluginListing]:
    order = [hookimpl.plugin_name for hookimpl in reversed(getattr(manager.hook, event).get_hookimpls())]
    return sorted((listing for listing in listings if listing.name in order), key=lambda own: order.index(own.name))


def _print(listings: Sequence[PluginListing], problems: Sequence[str]) -> None:
    console = Console()
    # Few columns, with several lines each, to fit a terminal of 80 columns.
    table = Table(show_lines=True)
    for heading in ("plugin", "state", "events", "order and options"):
        table.add_column(heading, overflow="fold")
    for listing in listings:
        table.add_row(
            f"[bold]{escape(listing.name)}[/]\n{escape(f'{listing.distribution} {listing.version}')}",
            _state(listing),
            escape("\n".join(f"{name} {listing.schedules.get(name, '')}".rstrip() for name in listing.events)),
            escape("\n".join([*_order(listing), *_options(listing)])),
        )
    if listings:
        console.print(table)
    else:
        console.print("No plugin is installed, or none implements that event. `hookline new-plugin NAME` creates one.")
    for listing in listings:
        if listing.reason:
            verb = "has" if listing.state == "failed" else "is"
            console.print(f"{escape(listing.name)} {verb} {_state(listing)}: {escape(listing.reason)}", soft_wrap=True)
    for problem in problems:
        console.print(f"[red]problem[/] {escape(problem)}", soft_wrap=True)


def _state(listing: PluginListing) -> str:
    return f"[{STYLES[listing.state]}]{listing.state}[/]"


def _order(listing: PluginListing) -> list[str]:
    relations = {"after": listing.after, "before": listing.before, "requires": listing.requires}
    return [f"{relation} {', '.join(names)}" for relation, names in relations.items() if names]


def _options(listing: PluginListing) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in listing.options.items()]
