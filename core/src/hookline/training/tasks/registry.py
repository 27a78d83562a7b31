"""Finds tasks by name: built-in ones, those of plugins, and those in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hookline.errors import did_you_mean
from hookline.importing import import_file
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.registry import collect_registered
from hookline.training.errors import UnknownTaskError
from hookline.training.tasks.arithmetic import addition, arithmetic
from hookline.training.tasks.cartpole import cartpole
from hookline.training.tasks.grpo import grpo
from hookline.training.tasks.sft import sft
from hookline.training.tasks.task import Task

__all__ = ["find_task", "full_name"]

OWN_TASKS: Final[Mapping[str, Task]] = {
    "addition": addition,
    "arithmetic": arithmetic,
    "cartpole": cartpole,
    "grpo": grpo,
    "sft": sft,
}


def find_task(name: str, plugins: PluginManager) -> Task:
    """The task of this name. `path/to/file.py:NAME` is a task in a file."""
    if ".py" in name:
        return _task_in_file(name)
    tasks = collect_registered(plugins, "register_tasks", "a task", OWN_TASKS)
    if name not in tasks:
        raise UnknownTaskError(
            f"there is no task {name!r}{did_you_mean(name, tasks)}; known are {', '.join(sorted(tasks))}, "
            "and path/to/file.py:NAME for one of your own"
        )
    return _as_task(tasks[name].value, name)


def full_name(name: str) -> str:
    """The name with an absolute path, so that it works from any folder."""
    path, colon, attribute = name.partition(":")
    return f"{Path(path).resolve()}{colon}{attribute}" if ".py" in name else name


def _task_in_file(name: str) -> Task:
    path, _, attribute = name.partition(":")
    file = Path(path)
    if not file.is_file():
        raise UnknownTaskError(f"there is no file {path!r} for the task {name!r}")
    module = import_file(file)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Task)}
    if not attribute:
        known = f"it has {', '.join(found)}" if found else "it has no function marked with @hookline.training.task(...)"
        raise UnknownTaskError(f"name a task in {path!r}, as {path}:NAME; {known}")
    if not hasattr(module, attribute):
        raise UnknownTaskError(f"there is no {attribute!r} in {path!r}{did_you_mean(attribute, found)}")
    return _as_task(getattr(module, attribute), name)


def _as_task(value: Any, name: str) -> Task:
    if isinstance(value, Task):
        return value
    if callable(value) and not isinstance(value, type):
        return Task(value)
    raise UnknownTaskError(
        f"{name!r} is a {type(value).__name__}, not a task: a task is a function (config, plugins) -> Trainer, "
        "best marked with @hookline.training.task(...)"
    )
