"""Open a session with the installed plugins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError
from hookline.plugin_manager.listing import print_summary
from hookline.plugin_manager.loading import open_plugins
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import Settings, read_settings
from hookline.session.session import Session
from hookline_hookspecs import TrainerState
from hookline_hookspecs.redaction import redact, remember_secrets

__all__ = ["is_bridge_disabled", "number_in_environment", "open_session", "plugins_for_a_run"]


def number_in_environment(variable: str, default: int) -> int:
    """An integer from the environment, such as RANK or WORLD_SIZE, which torchrun sets."""
    text = os.environ.get(variable, "").strip()
    if text and not text.isdecimal():
        raise HooklineError(
            f"the environment variable {variable} must be a whole number, as torchrun sets it, got {text!r}: unset it"
        )
    return int(text or default)


def is_bridge_disabled(name: str) -> bool:
    """Whether the user has turned off a bridge that another library finds by itself.

    Either by the environment (`HOOKLINE_DISABLE_LIGHTNING=1`), or as a plugin is: `disable = ["lightning"]`.
    """
    variable = os.environ.get(f"HOOKLINE_DISABLE_{name.upper()}", "").strip().lower()
    return variable not in ("", "0", "false", "no") or name in read_settings().disabled


@contextmanager
def plugins_for_a_run(
    *, rank: int | None = None, settings: Settings | None = None, profile: bool = False
) -> Iterator[PluginManager]:
    """The installed plugins. At the end their background work is finished, and their failures are printed.

    :param rank: the rank of this process (default: from torchrun, else 0).
    :param profile: measure the time of each plugin, and print it at the end.
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
    """Open a run of your own training loop. The arguments become fields of the state that plugins receive.

    :param run_dir: the run's folder, where plugins write their files. Its name is the run's id. None: no files.
    :param policy: the trained policy. Checkpoints need its `state_dict()` and `load_state_dict()`.
    :param optimizer: the same; a mapping of names to optimizers where there are several.
    :param rank: the rank of this process, from 0 to `world_size - 1`, in a data-parallel loop.
    :param config: your own settings of the run, as JSON values. Saved in `config.json`, with secrets redacted.
    :param resume: resume the run in the folder. A plugin, such as checkpoint, restores it.
    :param host: the library whose trainer owns the loop and its checkpoints, in a bridge to one.
    :param host_state: what `Session.host_state` returned when the host saved the checkpoint that it resumes from.
    :param plugins: the loop's own plugins by name, registered after the installed ones and before the run begins.
    :param settings: the settings of plugins (default: from this folder and the environment).
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
