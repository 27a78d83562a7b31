"""Puts the commands together: our own, and those that plugins bring."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cyclopts import App
from rich.console import Console

import hookline
from hookline.cli.hooks_command import hooks
from hookline.cli.new_plugin import new_plugin
from hookline.cli.plugins_command import plugins
from hookline.cli.train_command import train
from hookline.plugins.discovery import load_plugins
from hookline.plugins.errors import HooklineError
from hookline.plugins.manager import PluginManager
from hookline.plugins.settings import read_settings

__all__ = ["main"]

OWN_COMMANDS: Final[Mapping[str, Callable[..., Any]]] = {
    "train": train,
    "plugins": plugins,
    "hooks": hooks,
    "new-plugin": new_plugin,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    app = App(
        name="hookline",
        version=hookline.__version__,
        help="Training runs whose evaluation, metrics, checkpoints, status and verification are plugins.",
    )
    for name, command in OWN_COMMANDS.items():
        app.command(command, name=name)
    errors = Console(stderr=True, highlight=False)
    if not tokens or tokens[0] not in OWN_COMMANDS:
        _add_plugin_commands(app, tokens, errors)
    try:
        app(tokens)
    except HooklineError as error:
        errors.print(f"hookline: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)


def _add_plugin_commands(app: App, tokens: Sequence[str], errors: Console) -> None:
    """Ask the plugins, which means importing them; a fault in there must not take `hookline --help` away."""
    try:
        manager = PluginManager()
        load_plugins(manager, read_settings(plugin_arguments=_plugin_arguments(tokens)))
        owners: dict[str, str] = {}
        for plugin, name, function in _commands(manager):
            if name in app:
                owner = f"the plugin {owners[name]!r}" if name in owners else "hookline itself"
                errors.print(
                    f"hookline: plugin {plugin!r} brings a command {name!r}, which {owner} has already", style="red"
                )
            else:
                owners[name] = plugin
                app.command(function, name=name)
    except HooklineError as error:
        errors.print(
            f"hookline: plugins bring no commands, since {error}", style="yellow", markup=False, soft_wrap=True
        )


def _commands(manager: PluginManager) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    for plugin, commands in manager.emit.register_commands().items():
        for name, function in commands.items():
            yield plugin, name, function


def _plugin_arguments(tokens: Sequence[str]) -> list[str]:
    """The values of `-p`, read before the command is known, so that a disabled plugin is not even imported."""
    return [value for flag, value in itertools.pairwise(tokens) if flag == "-p"]
