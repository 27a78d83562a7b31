"""A run as a TOML file: its task, the fields of its config, and settings of plugins.

    task = "grpo"
    policy = "models/tiny"
    epochs = 20

    [optimizer]
    learning_rate = 1e-5

    [plugins.checkpoint]
    every = 5

`task`, `disable`, `load`, `required`, `[[hooks]]` and `[plugins.NAME]` are read here, all other keys are fields of the
task's config. Importing this module imports no framework.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hookline.errors import ConfigError, ConfigFault, HooklineError
from hookline.plugin_manager.settings import parse_value

__all__ = ["Layer", "RunFile", "is_run_file", "parse_assignment", "read_run_file"]

SETTINGS: Final[tuple[str, ...]] = ("disable", "load", "required", "hooks", "plugins")
"""The keys that are settings of plugins, as in hookline.toml."""


@dataclass(frozen=True)
class Layer:
    """Fields of a config from one source, as nested tables."""

    table: Mapping[str, Any]
    where: str
    """The source, before the key in messages."""
    folder: Path
    """The folder that paths are relative to."""


@dataclass(frozen=True)
class RunFile:
    """The contents of a run file."""

    path: Path
    task: str
    """The task's name, with an absolute path for a task in a file."""
    config: Layer
    settings: Mapping[str, Any]
    """Settings of plugins."""

    @property
    def run_dir(self) -> Path | None:
        """The run's folder, if the file names one."""
        run_dir = self.config.table.get("run_dir")
        return self.config.folder / run_dir if isinstance(run_dir, str) else None


def is_run_file(name: str) -> bool:
    """Whether `hookline train NAME` means a run file."""
    return name.endswith(".toml")


def read_run_file(path: Path) -> RunFile:
    """Read a run file. The fields of the config are not validated yet: that needs the task."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HooklineError(f"there is no run file {str(path)!r}") from None
    except OSError as error:
        raise HooklineError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HooklineError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise HooklineError(f"{path} is nested too deep") from None
    task = table.pop("task", None)
    if not isinstance(task, str):
        problem = "is required" if task is None else f"must be a string, got {task!r}"
        raise ConfigError(
            [ConfigFault(f"{path}: task", f'{problem}: task = "grpo", "sft", "cartpole" or "file.py:NAME"')]
        )
    settings = {key: table.pop(key) for key in SETTINGS if key in table}
    folder = path.resolve().parent
    if ".py" in task:
        task = str(folder / task)
    return RunFile(path, task, Layer(table, f"{path}: ", folder), settings)


def parse_assignment(argument: str) -> Layer:
    """`a.b=value` as a layer. The value is TOML, or a string without quotes. Paths are relative to this folder."""
    path, equals, text = argument.partition("=")
    if not equals or not all(path.split(".")):
        problem = "is not of the form KEY=VALUE, such as optimizer.learning_rate=1e-4"
        raise ConfigError([ConfigFault(f"--set {path}", problem)])
    value = parse_value(text)
    for key in reversed(path.split(".")):
        value = {key: value}
    return Layer(value, "--set ", Path.cwd())
