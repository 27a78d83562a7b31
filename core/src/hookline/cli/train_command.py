"""`hookline train TASK`, and the summary printed at the end of a run."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from hookline.errors import HooklineError
from hookline.plugin_manager.settings import Settings, read_settings
from hookline.session import Terminated
from hookline.session.run_folder import CONFIG, read_config
from hookline_hookspecs import hookimpl
from hookline_hookspecs.redaction import redact_arguments, redact_text

if TYPE_CHECKING:
    from hookline.rollout import Curriculum
    from hookline.training import Trainer

__all__ = ["print_outcome", "train"]


def train(
    task: str | None = None,
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
        `arithmetic`, `cartpole`, the task of a plugin, or `path/to/file.py:NAME` for your own. May be left out with
        `--resume`.
    run_dir
        The run's folder; by default a new one in `runs/`.
    epochs
        How many epochs to train; the default is the task's own number.
    seed
        The seed of all random numbers of the run.
    resume
        Resume the run in `--run-dir` from its newest valid checkpoint, with its recorded config. Other arguments
        override the config.
    plugin
        Turn a plugin off (`-p no:NAME`) or on (`-p NAME`).
    option
        Set an option of a plugin (`-o PLUGIN.KEY=VALUE`).
    profile_plugins
        Measure the time of each plugin: prints a table, and writes a trace for Perfetto to the run's folder.
    """
    if resume and run_dir is None:
        raise HooklineError("--resume needs --run-dir, the folder of the run to resume")
    recorded = read_config(run_dir) if run_dir is not None and resume and (run_dir / CONFIG).exists() else {}
    task = task or _recorded_task(recorded, run_dir)
    folder = run_dir or _new_folder(task)
    settings = read_settings(
        plugin_arguments=plugin, option_arguments=option, recorded=folder / CONFIG if recorded else None
    )
    given = {"epochs": epochs, "seed": seed}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    console = Console(stderr=True, highlight=False)
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[LogHandler(console=console, show_path=False, log_time_format="%H:%M:%S")],
    )
    logging.getLogger("jax").setLevel(logging.WARNING)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    if recorded:
        for line in _resume_notes(folder, recorded, changes, settings):
            say(line)
    run_task = _import_training(say)
    began = Began()
    command = ["hookline", "train", task, "--run-dir", str(folder), "--resume"]
    hint = _resume_hint(folder, [*command, *_arguments(changes, plugin, option, profile_plugins)])
    try:
        trainer = run_task(
            task, run_dir=folder, resume=resume, settings=settings, profile=profile_plugins, hooks=[began], **changes
        )
    except KeyboardInterrupt:
        say(f"stopped. {hint()}")
        sys.exit(130)
    except Terminated as error:
        say(f"{error}. {hint()}")
        raise
    except Exception:
        if began:
            say(f"the run failed. {hint()}")
        raise
    if trainer.ranks.rank == 0:
        print_outcome(trainer, folder, Console(highlight=False))


def print_outcome(trainer: Trainer, folder: Path, console: Console) -> None:
    state = trainer.state
    of_all = f" of {state.total_epochs}" if state.epoch + 1 != state.total_epochs else ""
    console.print(f"[bold]{escape(state.run_id)}[/]: {state.epoch + 1}{of_all} epochs, {state.step:,} gradient steps")
    if state.stop_reason is not None:
        console.print(f"ended early: {escape(redact_text(state.stop_reason))}")
    if trainer.worker is not None:
        if trainer.worker.is_complete:
            console.print("complete: all lessons have graduated")
        console.print(_lessons(trainer.worker.curriculum, state.eval_scores))
    console.print(f"files    {escape(str(folder))}", soft_wrap=True)
    if (folder / "report.html").exists():
        console.print(f"report   {escape(str(folder / 'report.html'))}", soft_wrap=True)


def _lessons(curriculum: Curriculum, scores: Mapping[str, float]) -> Table:
    table = Table()
    table.add_column("lesson")
    table.add_column("state")
    for heading in ("success in training", "success in evaluation", "mean reward"):
        table.add_column(heading, justify="right")
    for name, standing in curriculum.standings.items():
        success, reward = (scores.get(f"eval/{name}/{score}") for score in ("success_rate", "mean_reward"))
        table.add_row(
            escape(name),
            "graduated" if standing.graduated else "in training" if standing.unlocked else "locked",
            "-" if standing.success is None else f"{standing.success:.0%}",
            "-" if success is None else f"{success:.0%}",
            "-" if reward is None else f"{reward:.4g}",
        )
    return table


class LogHandler(RichHandler):
    """Redacts log records: some libraries log the URLs that they call, with secrets in them."""

    def format(self, record: logging.LogRecord) -> str:
        return redact_text(super().format(record))


class Began:
    """True once the run has begun; before that there is nothing to resume."""

    def __init__(self) -> None:
        self._has_begun = False

    @hookimpl
    def pre_training(self) -> None:
        self._has_begun = True

    def __bool__(self) -> bool:
        return self._has_begun


def _recorded_task(recorded: dict[str, Any], run_dir: Path | None) -> str:
    if isinstance(recorded.get("task"), str):
        return str(recorded["task"])
    if run_dir is not None and recorded:
        raise HooklineError(f"the run in {run_dir} was not started by a task name: name the task to resume")
    raise HooklineError("no task given: hookline train TASK, such as cartpole, arithmetic or path/to/file.py:NAME")


def _new_folder(task: str) -> Path:
    name = task.rpartition(":")[2] if ".py" in task else task
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _import_training(say: Callable[[str], None]) -> Callable[..., Any]:
    """Import torch, which takes seconds. Ctrl-C during an import may surface as another error of that import."""
    try:
        from hookline.training.run import train
    except BaseException as error:
        link: BaseException | None = error
        while link is not None and not isinstance(link, KeyboardInterrupt):
            link = link.__cause__ or link.__context__
        if link is None:
            raise
        say("stopped before the run began.")
        sys.exit(130)
    return train


def _resume_notes(folder: Path, recorded: dict[str, Any], changes: dict[str, Any], settings: Settings) -> list[str]:
    before = recorded.get("trainer", {})
    changed = [f"changed: {key} {before.get(key)} -> {now}" for key, now in changes.items() if before.get(key) != now]
    return [f"resuming with the config recorded in {folder / CONFIG}", *changed, *settings.notes]


def _arguments(changes: dict[str, Any], plugins: Sequence[str], options: Sequence[str], profile: bool) -> list[str]:
    """The command-line arguments of this run besides task and folder, with secrets redacted."""
    arguments = [part for name, value in changes.items() for part in (f"--{name}", str(value))]
    arguments += [part for plugin in plugins for part in ("-p", plugin)]
    arguments += [part for option in options for part in ("-o", option)]
    return redact_arguments([*arguments, "--profile-plugins"] if profile else arguments)


def _resume_hint(folder: Path, command: Sequence[str]) -> Callable[[], str]:
    def hint() -> str:
        if not (folder / "checkpoints").is_dir():
            return "No checkpoint was saved, so the run cannot be resumed."
        return f"Resume it with: {shlex.join(command)}"

    return hint
