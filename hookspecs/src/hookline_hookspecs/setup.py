"""Events by which plugins add tasks, losses, environments, engines, sources and commands before a run starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookline_hookspecs.markers import hookspec

__all__ = [
    "register_commands",
    "register_engines",
    "register_environments",
    "register_losses",
    "register_sources",
    "register_tasks",
]


@hookspec(kind="collect")
def register_tasks() -> Mapping[str, Any] | None:
    """Add tasks to `hookline train`.

    When: once, when the tasks are first needed.
    Emitted by: core.
    Where: every rank, main thread.
    Returns: tasks by name. A name that two plugins give is an error.
    Added: 0.1.
    """


@hookspec(kind="collect")
def register_losses() -> Mapping[str, Any] | None:
    """Add losses that a trainer's config can name.

    When: once, before the trainer builds its losses.
    Emitted by: core.
    Where: every rank, main thread.
    Returns: loss classes by name. A name that two plugins give is an error.
    Added: 0.1.
    """


@hookspec(kind="collect")
def register_environments() -> Mapping[str, Any] | None:
    """Add environments that a rollout worker's config can name.

    When: once, before the worker builds its environments.
    Emitted by: core.
    Where: every rank, main thread.
    Returns: environment factories by name. A name that two plugins give is an error.
    Added: 0.1.
    """


@hookspec(kind="collect")
def register_engines() -> Mapping[str, Callable[[Any], Any]] | None:
    """Add engines that generate text for rollouts.

    When: once, before a worker with text lessons builds its engine.
    Emitted by: core.
    Where: every rank, main thread.
    Returns: engine factories by name. Each takes an `EngineRequest` and returns a `RolloutEngine`, both of
        `hookline.rollout.engines`. A name that two plugins give is an error.
    Added: 0.2.
    """


@hookspec(kind="collect")
def register_sources() -> Mapping[str, Callable[[Any], Any]] | None:
    """Add sources of rollouts that a trainer's config can name.

    When: once, before a trainer with rollouts builds its source.
    Emitted by: core.
    Where: every rank, main thread.
    Returns: source factories by name. Each takes a `SourceRequest` and returns a `RolloutSource`, both of
        `hookline.rollout.sources`. A name that two plugins give is an error.
    Added: 0.2.
    """


@hookspec(kind="collect")
def register_commands() -> Mapping[str, Callable[..., Any]] | None:
    """Add commands to `hookline`.

    When: once, when the command line starts.
    Emitted by: core.
    Where: every rank, main thread.
    Returns: functions by command name. Their typed parameters become arguments, their docstrings the help.
    Added: 0.1.
    """
