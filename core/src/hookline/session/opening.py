"""The installed plugins for the time of a run, and a session with them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError
from hookline.plugin_manager.discovery import open_plugins
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import Settings
from hookline.plugin_manager.summary import print_summary
from hookline.session.session import Session
from hookline_hookspecs import TrainerState
from hookline_hookspecs.redaction import redact, remember_secrets

__all__ = ["number_in_environment", "open_session", "plugins_for_a_run"]


def number_in_environment(variable: str, default: int) -> int:
    """What torchrun says of this process: its RANK, or the WORLD_SIZE."""
    text = os.environ.get(variable, "").strip()
    if text and not text.isdecimal():
        raise HooklineError(
            f"the environment variable {variable} must be a whole number, as torchrun sets it, "
            f"and is {text!r}: unset it"
        )
    return int(text or default)


@contextmanager
def plugins_for_a_run(
    *, rank: int | None = None, settings: Settings | None = None, profile: bool = False
) -> Iterator[PluginManager]:
    """The installed plugins; at the end their background work is done, and what went wrong with them is shown.

    :param rank: this process among those of the run (default: what torchrun says, else 0).
    :param profile: measure what each plugin costs, and show it in the end.
    """
    plugins = open_plugins(rank=number_in_environment("RANK", 0) if rank is None else rank, settings=settings)
    if profile:
        plugins.enable_timing()
    try:
        yield plugins
    finally:
        try:
            plugins.close()
        finally:
            print_summary(plugins)


@contextmanager
def open_session(
    run_dir: str | Path | None = None,
    *,
    policy: Any = None,
    optimizer: Any = None,
    total_epochs: int | None = None,
    total_steps: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    config: Mapping[str, Any] | None = None,
    resume: bool = False,
    host: str | None = None,
    host_state: Mapping[str, Any] | None = None,
    plugins: Mapping[str, object] | None = None,
    settings: Settings | None = None,
) -> Iterator[Session]:
    """Open a run of your own loop; plugins find in the state what you give here.

    :param run_dir: the run's folder, where plugins leave their files; its name is the run's. None for no files.
    :param policy: what is trained. A checkpoint needs its `state_dict()` and `load_state_dict()`, others nothing.
    :param optimizer: the same; a mapping of names to optimizers where there are several.
    :param rank: this process among `world_size` ones, where the loop is data-parallel.
    :param config: what else the run was told, as JSON can hold it; kept in `config.json`, but for secrets.
    :param resume: go on from what the folder holds; an installed plugin restores it.
    :param host: the library whose trainer owns the loop and its checkpoints, where this is a bridge to one.
    :param host_state: what `Session.host_state` returned when the host saved the checkpoint that it resumes from.
    :param plugins: plugins of the loop's own by name, registered after the installed ones and before the run begins.
    :param settings: which plugins are wanted, and how (default: those of this folder and environment).
    """
    remember_secrets(config)
    folder = None if run_dir is None else Path(run_dir)
    state = TrainerState(
        run_id="" if folder is None else folder.name,
        run_dir=folder,
        config=redact(config or {}),
        resume=resume,
        host=host,
        policy=policy,
        optimizer=optimizer,
        total_epochs=total_epochs,
        total_steps=total_steps,
        rank=rank,
        world_size=world_size,
    )
    with plugins_for_a_run(rank=rank, settings=settings) as manager:
        for name, plugin in (plugins or {}).items():
            manager.register(plugin, name)
        with Session(manager, state, host_state=host_state) as session:
            yield session
