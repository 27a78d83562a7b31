"""The `hookline` command: its own subcommands, and those of plugins."""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import hookline
from hookline.cli.columns import aligned, print_lines
from hookline.errors import ConfigError, HooklineError, PluginError, did_you_mean
from hookline_hookspecs.errors import describe_error, error_message
from hookline_hookspecs.logs import hide_secrets_in_tracebacks, print_traceback
from hookline_hookspecs.redaction import redact_text

if TYPE_CHECKING:
    from cyclopts import App

    from hookline.plugin_manager.loading import PluginRecord
    from hookline.plugin_manager.manager import PluginManager

__all__ = ["main"]

HELP: Final = "Training runs whose evaluation, metrics, checkpoints, status and verification are plugins."

OWN_COMMANDS: Final = {
    "train": "train_command",
    "export": "export_command",
    "plugins": "plugins_command",
    "hooks": "hooks_command",
    "lock": "lock_command",
    "new-plugin": "new_plugin",
}
"""The module of each command, which has a function of the command's name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    hide_secrets_in_tracebacks()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not tokens or tokens[0] in ("-h", "--help"):
            _print_overview(_find_plugin_commands(tokens))
        elif tokens[0] == "--version":
            print(hookline.__version__)
        else:
            _run(tokens)
    except HooklineError as error:
        notes = getattr(error, "__notes__", ())
        _say("\n".join([f"hookline: {error_message(error)}", *map(redact_text, notes)]), "red")
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except SystemExit as end:
        if isinstance(end.code, str):  # the interpreter would print it unredacted
            sys.exit(redact_text(end.code))
        raise
    except Exception as error:
        print_traceback(error)  # redacted; sys.excepthook may be wandb's
        sys.exit(1)


class PluginCommand(NamedTuple):
    """A command that a plugin brings."""

    function: Callable[..., Any]
    owner: PluginRecord


def _own_command(name: str) -> Callable[..., Any]:
    command: Callable[..., Any] = getattr(import_module(f"hookline.cli.{OWN_COMMANDS[name]}"), name.replace("-", "_"))
    return command


def _print_overview(plugin_commands: Mapping[str, PluginCommand]) -> None:
    """The commands in a line each. The help of one command is cyclopts', with its arguments."""
    print(f"{HELP}\n")
    commands = {name: _own_command(name) for name in OWN_COMMANDS}
    commands |= {name: command.function for name, command in plugin_commands.items()}
    print_lines(aligned([(f"  {name}", _first_sentence(commands[name])) for name in sorted(commands)]))
    print("\nhookline COMMAND --help shows the arguments of one, hookline --version the version.")


def _first_sentence(command: Callable[..., Any]) -> str:
    return (inspect.getdoc(command) or "").partition("\n\n")[0].replace("\n", " ")


def _run(tokens: Sequence[str]) -> None:
    name = tokens[0]
    if tokens in (["plugins"], ["hooks"]):
        _own_command(name)()  # nothing to parse: the import of cyclopts would take as long as the command
        sys.exit()  # as an app of cyclopts does
    from cyclopts import App

    app = App(name="hookline", version_flags=(), help=HELP, help_format="plaintext")
    if name in OWN_COMMANDS:
        app.command(_own_command(name), name=name)
    elif not name.startswith("-"):
        commands = _find_plugin_commands(tokens)
        if name not in commands:
            raise HooklineError(f"there is no command {name!r}{did_you_mean(name, [*OWN_COMMANDS, *commands])}")
        app.command(_parsed(name, commands[name]))
    app(tokens)


def _parsed(name: str, command: PluginCommand) -> App:
    """The command of a plugin. Its parameters are parsed here, so that an error names the plugin."""
    from cyclopts import App

    app = App(name=name)
    try:
        app.default(command.function)
        app.assemble_argument_collection()
    except Exception as error:
        problem = f"the command {name!r} of plugin {command.owner.found} cannot be used: {describe_error(error)}"
        raise PluginError(None, problem) from error
    return app


def _say(text: str, style: str) -> None:
    from rich.console import Console  # there is seldom something to say

    Console(stderr=True, highlight=False).print(text, style=style, markup=False, soft_wrap=True)


def _find_plugin_commands(tokens: Sequence[str]) -> dict[str, PluginCommand]:
    """Import the plugins and collect their commands. A faulty plugin is reported; the other commands stay available."""

    from hookline.plugin_manager.loading import PluginLoader
    from hookline.plugin_manager.manager import PluginManager
    from hookline.plugin_manager.settings import read_settings

    def report(problem: object) -> None:
        _say(f"hookline: {redact_text(str(problem))}", "yellow")

    loader = PluginLoader(PluginManager(), read_settings(plugin_arguments=_plugin_arguments(tokens)))
    loader.prepare()
    loader.register()
    commands: dict[str, PluginCommand] = {}
    for record in loader.records:
        if record.state == "active":
            with record.fails_on_error("has no usable commands"):
                own = _commands_of(record, loader.manager)
                _check_names(own, commands)
                commands |= {name: PluginCommand(function, record) for name, function in own.items()}
    for fault in loader.faults:
        report(fault)
    for record in loader.failed():
        if not isinstance(record.error, ConfigError):
            report(f"plugin {record.found} {record.reason}; it is left out")
    is_command = bool(tokens) and not tokens[0].startswith("-")  # help always works
    if is_command and loader.settings.strict and loader.failed():
        raise HooklineError("plugins failed to load, and strict = true")
    return commands


def _commands_of(record: PluginRecord, manager: PluginManager) -> Mapping[str, Callable[..., Any]]:
    """The commands of one plugin. It is called alone, so that its error is raised here, whatever its policy."""
    commands = manager.call_one("register_commands", record.name)
    if commands is None:
        return {}
    if not isinstance(commands, Mapping) or not all(isinstance(name, str) for name in commands):
        raise PluginError(None, f"register_commands must return a dictionary of functions by name, not {commands!r}")
    return commands


def _check_names(names: Iterable[str], others: Mapping[str, PluginCommand]) -> None:
    for name in names:
        if name in OWN_COMMANDS or name in others:
            owner = f"plugin {others[name].owner.found}" if name in others else "hookline itself"
            raise PluginError(None, f"its command {name!r} is already a command of {owner}")


def _plugin_arguments(tokens: Sequence[str]) -> list[str]:
    """The values of `-p`, read before the command is parsed, so that a disabled plugin is not imported."""
    return [value for flag, value in itertools.pairwise(tokens) if flag == "-p"]
