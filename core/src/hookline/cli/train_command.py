"""`hookline train TASK`, also with a run file. What it prints is in `train_output`."""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from hookline import parsing
from hookline.errors import HooklineError
from hookline.plugin_manager.settings import Settings, read_settings
from hookline.run_file import is_run_file, read_run_file
from hookline_hookspecs import hookimpl
from hookline_hookspecs.redaction import redact_arguments, redact_text

__all__ = ["train"]


def train(
    task: str | None = None,
    *,
    run_dir: Path | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    source: str | None = None,
    workers: int | None = None,
    resume: Annotated[bool, parsing.Parameter(negative="")] = False,
    plugin: Annotated[tuple[str, ...], parsing.Parameter(name="-p", negative="")] = (),
    option: Annotated[tuple[str, ...], parsing.Parameter(name="-o", negative="")] = (),
    assignment: Annotated[tuple[str, ...], parsing.Parameter(name="--set", negative="")] = (),
    show_config: Annotated[bool, parsing.Parameter(negative="")] = False,
    profile_plugins: Annotated[bool, parsing.Parameter(negative="")] = False,
) -> None:
    """Train a task with all installed plugins.

    Parameters
    ----------
    task
        `arithmetic`, `cartpole`, the task of a plugin, `path/to/file.py:NAME` for your own, or a run file,
        `path/to/run.toml`. May be left out with `--resume`.
    run_dir
        The run's folder; by default a new one in `runs/`.
    epochs
        How many epochs to train; the default is the task's own number.
    seed
        The seed of all random numbers of the run.
    source
        Where rollouts are made: `local`, `ahead`, `processes`, or a source of a plugin.
    workers
        How many workers the source has.
    resume
        Resume the run in `--run-dir` from its newest valid checkpoint, with its recorded config. Other arguments
        override the config.
    plugin
        Turn a plugin off (`-p no:NAME`) or on (`-p NAME`).
    option
        Set an option of a plugin (`-o PLUGIN.KEY=VALUE`).
    assignment
        Set a field of the task's config (`--set optimizer.learning_rate=1e-4`), over that of a run file.
    show_config
        Print the run file that the task, with `--set`, amounts to, and train nothing.
    profile_plugins
        Measure the time of each plugin: prints a table, and writes a trace for Perfetto to the run's folder.
    """
    # All commands import this module, and few train.
    from rich.console import Console

    from hookline.cli.train_output import LogHandler, print_outcome
    from hookline.session import Terminated
    from hookline.session.run_folder import CONFIG, read_config

    file = read_run_file(Path(task)) if task is not None and is_run_file(task) else None
    if run_dir is None and file is not None:
        run_dir = file.run_dir
    if resume and run_dir is None:
        raise HooklineError("--resume needs --run-dir, the folder of the run to resume")
    recorded = read_config(run_dir) if run_dir is not None and resume and (run_dir / CONFIG).exists() else {}
    task = task or _recorded_task(recorded, run_dir)
    folder = run_dir or _default_folder(task)
    settings = read_settings(
        plugin_arguments=plugin,
        option_arguments=option,
        recorded=folder / CONFIG if recorded else None,
        run_file=file,
    )
    rollouts = {"rollout.source": source, "rollout.workers": workers}
    assignment += tuple(f"{name}={value}" for name, value in rollouts.items() if value is not None)
    shorthands = {"epochs": epochs, "seed": seed}
    given = {name: value for name, value in shorthands.items() if value is not None}
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
        changed = [*assignment, *(f"{name}={value}" for name, value in given.items())]
        for line in _resume_notes(folder, recorded, changed, settings):
            say(line)
    training = _import_training(say)
    if show_config:
        print(redact_text(training.show_config(task, assignment, settings, **given)), end="")
        return
    began = RunHasBegun()
    if run_dir is None:
        folder = _reserved(folder)
    command = ["hookline", "train", task, "--run-dir", str(folder), "--resume"]
    hint = _resume_hint(folder, [*command, *_arguments(given, plugin, option, assignment, profile_plugins)])
    try:
        trainer = training.train(
            task,
            run_dir=folder,
            resume=resume,
            settings=settings,
            profile=profile_plugins,
            hooks=[began],
            assignments=assignment,
            **given,
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
    finally:
        if run_dir is None and not began:
            _give_back(folder)
    if trainer.ranks.rank == 0:
        print_outcome(trainer, folder, Console(highlight=False))


class RunHasBegun:
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


def _default_folder(task: str) -> Path:
    name = Path(task).stem if is_run_file(task) else task.rpartition(":")[2] if ".py" in task else task
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _reserved(folder: Path) -> Path:
    """Create the folder of a new run, numbered if another run of the task has begun in the same second.

    Of several ranks, the first one has the folder. A folder that cannot be created is reported when the run claims it.
    """
    if os.environ.get("RANK", "0") != "0":
        return folder
    for number in itertools.count(1):
        own = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            own.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:
            break
        return own
    return folder


def _give_back(folder: Path) -> None:
    """Remove the folder of a run that did not begin, if there is nothing in it."""
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def _import_training(say: Callable[[str], None]) -> ModuleType:
    """Import torch, which takes seconds. Ctrl-C during an import may surface as another error of that import."""
    try:
        from hookline.training import run
    except BaseException as error:
        link: BaseException | None = error
        while link is not None and not isinstance(link, KeyboardInterrupt):
            link = link.__cause__ or link.__context__
        if link is None:
            raise
        say("stopped before the run began.")
        sys.exit(130)
    return run


def _resume_notes(
    folder: Path, recorded: Mapping[str, Any], assignments: Sequence[str], settings: Settings
) -> list[str]:
    notes = [f"resuming with the config recorded in {folder / 'config.json'}"]
    for assignment in redact_arguments(assignments):
        path, _, now = assignment.partition("=")
        before: Any = recorded.get("trainer", {})
        for key in path.split("."):
            before = before.get(key) if isinstance(before, Mapping) else None
        if str(before) != now:
            notes.append(f"changed: {path} {before} -> {now}")
    return [*notes, *settings.notes]


def _arguments(
    given: Mapping[str, Any],
    plugins: Sequence[str],
    options: Sequence[str],
    assignments: Sequence[str],
    profile: bool,
) -> list[str]:
    """The command-line arguments of this run besides task and folder, with secrets redacted."""
    arguments = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    for flag, values in {"-p": plugins, "-o": options, "--set": assignments}.items():
        arguments += [part for value in values for part in (flag, value)]
    return redact_arguments([*arguments, "--profile-plugins"] if profile else arguments)


def _resume_hint(folder: Path, command: Sequence[str]) -> Callable[[], str]:
    def hint() -> str:
        if not (folder / "checkpoints").is_dir():
            return "No checkpoint was saved, so the run cannot be resumed."
        return f"Resume it with: {shlex.join(command)}"

    return hint
