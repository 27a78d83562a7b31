"""`open_session`: a session with the installed plugins, for the time of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hookline.plugins.discovery import open_plugins
from hookline.plugins.settings import Settings
from hookline.plugins.summary import print_summary
from hookline.session.session import Session
from hookline_hookspecs import TrainerState

__all__ = ["open_session"]


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
    settings: Settings | None = None,
) -> Iterator[Session]:
    """Open a run of your own loop; plugins find in the state what you give here.

    :param run_dir: the run's folder, where plugins leave their files; its name is the run's. None for no files.
    :param policy: what is trained. A checkpoint needs its `state_dict()` and `load_state_dict()`, others nothing.
    :param rank: this process among `world_size` ones, where the loop is data-parallel.
    :param settings: which plugins are wanted, and how (default: those of this folder and environment).
    """
    folder = None if run_dir is None else Path(run_dir)
    state = TrainerState(
        run_id="" if folder is None else folder.name,
        run_dir=folder,
        policy=policy,
        optimizer=optimizer,
        total_epochs=total_epochs,
        total_steps=total_steps,
        rank=rank,
        world_size=world_size,
    )
    plugins = open_plugins(rank=rank, settings=settings)
    try:
        with Session(plugins, state) as session:
            yield session
    finally:
        try:
            plugins.close()
        finally:
            print_summary(plugins)
