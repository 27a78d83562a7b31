"""The `hookline` command: its own subcommands, and those of plugins."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cyclopts import App
from rich.console import Console

import hookline
from hookline.cli.export_command import export
from hookline.cli.hooks_command import hooks
from hookline.cli.new_plugin import new_plugin
from hookline.cli.plugins_command import plugins
from hookline.cli.train_command import train
from hookline.errors import ConfigError, HooklineError, PluginError
from hookline.plugin_manager.loading import PluginLoader, PluginRecord
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import read_settings
from hookline_hookspecs.errors import error_message
from hookline_hookspecs.logs import hide_secrets_in_tracebacks, print_traceback
from hookline_hookspecs.redaction import redact_text

__all__ = ["main"]

OWN_COMMANDS: Final[Mapping[str, Callable[..., Any]]] = {
    "train": train,
    "export": export,
    "plugins": plugins,
    "hooks": hooks,
    "new-plugin": new_plugin,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    hide_secrets_in_tracebacks()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    app = App(
        name="hookline",
        version=hookline.__version__,
        help="Training runs whose evaluation, metrics, checkpoints, status and verification are plugins.",
    )
    for name, command in OWN_COMMANDS.items():
        app.command(command, name=name)
    errors = Console(stderr=True, highlight=False)
    try:
        if not tokens or tokens[0] not in OWN_COMMANDS:
            _add_plugin_commands(app, tokens, errors)
        app(tokens)
    except HooklineError as error:
        notes = getattr(error, "__notes__", ())
        lines = [f"hookline: {error_message(error)}", *map(redact_text, notes)]
        errors.print("\n".join(lines), style="red", markup=False, soft_wrap=True)
        sys.exit(1)
    except SystemExit as end:
        if isinstance(end.code, str):  # the interpreter would print it unredacted
            sys.exit(redact_text(end.code))
        raise
    except Exception as error:
        print_traceback(error)  # redacted; sys.excepthook may be wandb's
        sys.exit(1)


def _add_plugin_commands(app: App, tokens: Sequence[str], errors: Console) -> None:
    """Import the plugins and add their commands. A faulty plugin is reported; the other commands stay available."""

    def report(problem: object) -> None:
        errors.print(f"hookline: {redact_text(str(problem))}", style="yellow", markup=False, soft_wrap=True)

    loader = PluginLoader(PluginManager(), read_settings(plugin_arguments=_plugin_arguments(tokens)))
    loader.prepare()
    loader.register()
    owners: dict[str, PluginRecord] = {}
    for record in loader.records:
        if record.state == "active":
            with record.fails_on_error("has no usable commands"):
                _add_commands(app, record, _commands_of(record, loader.manager), owners)
    for fault in loader.faults:
        report(fault)
    for record in loader.failed():
        if not isinstance(record.error, ConfigError):
            report(f"plugin {record.found} {record.reason}; it is left out")
    is_command = bool(tokens) and not tokens[0].startswith("-")  # help and version always work
    if is_command and loader.settings.strict and loader.failed():
        raise HooklineError("plugins failed to load, and strict = true")


def _commands_of(record: PluginRecord, manager: PluginManager) -> Mapping[str, Callable[..., Any]]:
    """The commands of one plugin. It is called alone, so that its error is raised here, whatever its policy."""
    commands = manager.call_one("register_commands", record.name)
    if commands is None:
        return {}
    if not isinstance(commands, Mapping) or not all(isinstance(name, str) for name in commands):
        raise PluginError(None, f"register_commands must return a dictionary of functions by name, not {commands!r}")
    return commands


def _add_commands(
    app: App, record: PluginRecord, commands: Mapping[str, Callable[..., Any]], owners: dict[str, PluginRecord]
) -> None:
    for name, function in commands.items():
        if name in app:
            owner = f"plugin {owners[name].found}" if name in owners else "hookline itself"
            raise PluginError(None, f"its command {name!r} is already a command of {owner}")
        command = App(name=name)
        command.default(function)
        command.assemble_argument_collection()  # raises here, not in `--help`, if its parameters are invalid
        owners[name] = record
        app.command(command)


def _plugin_arguments(tokens: Sequence[str]) -> list[str]:
    """The values of `-p`, read before the command is parsed, so that a disabled plugin is not imported."""
    return [value for flag, value in itertools.pairwise(tokens) if flag == "-p"]
