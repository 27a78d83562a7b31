"""`hookline train`: a task, with all installed plugins."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from hookline.plugins.errors import HooklineError
from hookline.plugins.settings import read_settings

if TYPE_CHECKING:
    from hookline.training import Trainer

__all__ = ["train"]


def train(
    task: str,
    *,
    run_dir: Path | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    plugin: Annotated[tuple[str, ...], Parameter(name="-p", negative="")] = (),
    option: Annotated[tuple[str, ...], Parameter(name="-o", negative="")] = (),
    profile_plugins: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a task with all installed plugins.

    Parameters
    ----------
    task
        `arithmetic`, `cartpole`, another that a plugin brings, or `path/to/file.py:NAME` for one of your own.
    run_dir
        The run's folder; by default a new one in `runs/`.
    epochs
        How many epochs to train, in place of the task's own number.
    seed
        What all randomness of the run is drawn from.
    resume
        Go on with the run in `--run-dir`, from its newest valid checkpoint.
    plugin
        Turn a plugin off (`-p no:NAME`) or on (`-p NAME`).
    option
        Set an option of a plugin (`-o PLUGIN.KEY=VALUE`).
    profile_plugins
        Measure what each plugin costs: a table in the end, and a trace for Perfetto in the run's folder.
    """
    if resume and run_dir is None:
        raise HooklineError("--resume needs --run-dir, the folder of the run to go on with")
    settings = read_settings(plugin_arguments=plugin, option_arguments=option)
    folder = run_dir or _new_folder(task)
    given = {"epochs": epochs, "seed": seed}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    console = Console(stderr=True, highlight=False)
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")],
    )
    logging.getLogger("jax").setLevel(logging.WARNING)
    from hookline.training.run import train as run_task

    try:
        trainer = run_task(task, run_dir=folder, resume=resume, settings=settings, profile=profile_plugins, **changes)
    except KeyboardInterrupt:
        console.print(f"stopped. {_how_to_go_on(task, folder)}", soft_wrap=True, markup=False)
        sys.exit(130)
    if trainer.ranks.rank == 0:
        _print_outcome(trainer, folder)


def _new_folder(task: str) -> Path:
    name = task.rpartition(":")[2] if ".py" in task else task
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _how_to_go_on(task: str, folder: Path) -> str:
    if not (folder / "checkpoints").is_dir():
        return "Nothing was saved, so there is nothing to go on with."
    return "Go on with " + shlex.join(["hookline", "train", task, "--run-dir", str(folder), "--resume"])


def _print_outcome(trainer: Trainer, folder: Path) -> None:
    console = Console(highlight=False)
    state = trainer.state
    console.print(f"[bold]{escape(state.run_id)}[/]: {state.epoch + 1} epochs, {state.step:,} gradient steps")
    console.print(f"files   {escape(str(folder))}", soft_wrap=True)
