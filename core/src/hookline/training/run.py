"""`train`: a run with all installed plugins in one call, by a task, a run file, or parts of your own.

Also restores a run's config and trainer from its folder.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hookline.errors import HooklineError
from hookline.plugin_manager import open_plugins
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import Settings, is_redacted, read_settings
from hookline.run_file import Layer, RunFile, is_run_file, parse_assignment, read_run_file
from hookline.session.opening import plugins_for_a_run
from hookline.session.run_folder import CONFIG, RunFolderError, read_config
from hookline.training.config import TrainerConfig, as_plain_data, from_plain_data
from hookline.training.config_files import apply_layers, paths_of, run_file_text
from hookline.training.errors import TrainerConfigError
from hookline.training.tasks import Task, find_task
from hookline.training.tasks.registry import full_name
from hookline.training.trainer import Trainer
from hookline_hookspecs.redaction import redact

if TYPE_CHECKING:
    from hookline.rollout import Curriculum, CurriculumConfig

__all__ = ["rebuild_trainer", "recorded_config", "show_config", "train"]

T = TypeVar("T")

logger = logging.getLogger("hookline.training")

OF_THIS_START: Final = ("run_dir", "resume", "task")
"""Fields that are not restored, since a run's folder may have been moved."""


def recorded_config(config: TrainerConfig, task: str, run_dir: Path) -> TrainerConfig:
    """`config` with the fields that the run in `run_dir` recorded, if that run is of the same task.

    :param task: the task's full name.
    """
    recorded = read_config(run_dir) if (run_dir / CONFIG).exists() else {}
    # A task in a file is named by the file's path, and the file may have been moved with the run.
    if Path(str(recorded.get("task"))).name != Path(task).name or not isinstance(recorded.get("trainer"), Mapping):
        return config
    plain = {name: value for name, value in recorded["trainer"].items() if name not in OF_THIS_START}
    return _changed_as_recorded(config, plain, str(run_dir / CONFIG))


def _changed_as_recorded(config: T, recorded: Mapping[str, Any], where: str) -> T:
    """`config` with the fields whose recorded values differ. A field that JSON cannot hold keeps its value."""
    changes: dict[str, Any] = {}
    hints = get_type_hints(type(config))
    for name in (own.name for own in fields(config) if own.name in recorded):  # type: ignore[arg-type]
        value, before = getattr(config, name), recorded[name]
        if redact({name: as_plain_data(value)})[name] == before:
            continue
        if is_dataclass(value) and isinstance(before, Mapping):
            changes[name] = _changed_as_recorded(value, before, f"{where}: {name}")
            continue
        if is_redacted(before):
            raise TrainerConfigError(f"{where}: {name} contains a secret, which is not recorded: pass it again")
        try:
            changes[name] = TypeAdapter(hints[name]).validate_python(before)
        except ValidationError as error:
            raise TrainerConfigError(f"{where}: {name} = {before!r} does not fit this version: {error}") from error
    return replace(config, **changes)  # type: ignore[type-var]


def rebuild_trainer(run_dir: Path, plugins: PluginManager | None = None) -> Trainer:
    """The trainer of the run in `run_dir` as it was at the start, with fresh weights and without a folder.

    :param plugins: receives the events and may register the task; by default there are no plugins.
    """
    plugins = plugins or PluginManager()
    config = read_config(run_dir)
    name, host = config.get("task"), config.get("host")
    if host is not None:
        raise RunFolderError(
            f"the run in {run_dir} was trained by {host}: its model is made by your own script and cannot be built "
            "again here. Evaluate it in that script"
        )
    if not isinstance(name, str) or "trainer" not in config:
        raise RunFolderError(
            f"the run in {run_dir} was not started by the name of a task, so its trainer cannot be built again: "
            "start it with `hookline train TASK` or hookline.train(TASK)"
        )
    task = find_task(name, plugins)
    own = from_plain_data(type(task.config), config["trainer"])
    return task.build(replace(own, run_dir=None, resume=False), plugins)


def train(
    what: str | Task | TrainerConfig | None = None,
    curriculum: Curriculum | CurriculumConfig | None = None,
    policy: Any = None,
    *,
    dataset: Any | None = None,
    validation_dataset: Any | None = None,
    hooks: Iterable[Any] = (),
    settings: Settings | None = None,
    profile: bool = False,
    assignments: Sequence[str] = (),
    **changes: Any,
) -> Trainer:
    """Train with the installed plugins and return the trainer. `Trainer` documents the other parameters.

    :param what: the name of a task or the path of a run file, as for `hookline train`; a `Task`, or a `TrainerConfig`.
        For a task, `policy` and the datasets are fields of its config, if it has such fields.
    :param hooks: further hooks for `Trainer.add_hook`.
    :param settings: which plugins are active, and their options; by default those of this folder, the run file and the
        environment.
    :param profile: measure the time of each plugin; print a table and write a trace to the run's folder.
    :param assignments: fields of the config as text, such as `"optimizer.learning_rate=1e-4"`.
    :param changes: fields of the config, such as `epochs=5` or `run_dir=Path("runs/mine")`. With `resume=True` and the
        name of a task or run file, all other fields are those recorded in the run's folder.
    """
    parts = {"curriculum": curriculum, "policy": policy, "dataset": dataset, "validation_dataset": validation_dataset}
    file = _run_file(what)
    if file is not None and settings is None:
        settings = read_settings(run_file=file)
    with plugins_for_a_run(settings=settings, profile=profile) as plugins:
        if isinstance(what, (str, Task)):
            task, config = _resolve(what, file, plugins, parts, assignments, changes)
            trainer = task.make(config, plugins)
        else:
            config = replace(what or TrainerConfig(), **changes)
            trainer = Trainer(apply_layers(config, map(parse_assignment, assignments)), **parts, plugins=plugins)
        for hook in hooks:
            trainer.add_hook(hook)
        try:
            trainer.train()
        finally:
            run_dir = trainer.state.run_dir
            if plugins.timer is not None and run_dir is not None and run_dir.is_dir():
                plugins.timer.write_chrome_trace(run_dir / "plugins.trace.json")
    return trainer


def show_config(what: str, assignments: Sequence[str] = (), settings: Settings | None = None, **changes: Any) -> str:
    """The run file that a task or a run file, with assignments and changes, amounts to."""
    file = _run_file(what)
    with open_plugins(settings=settings or read_settings(run_file=file)) as plugins:
        _, config = _resolve(what, file, plugins, {}, assignments, changes)
    return run_file_text(str(config.task), config, {} if file is None else file.settings)


def _run_file(what: Any) -> RunFile | None:
    return read_run_file(Path(what)) if isinstance(what, str) and is_run_file(what) else None


def _resolve(
    what: str | Task,
    file: RunFile | None,
    plugins: PluginManager,
    parts: Mapping[str, Any],
    assignments: Sequence[str],
    changes: dict[str, Any],
) -> tuple[Task, TrainerConfig]:
    """The task, and its config: the task's default, the run file, what a resumed run has recorded, then arguments."""
    name: str | None
    if isinstance(what, Task):
        task, name = what, what.config.task
    else:
        name = full_name(what) if file is None else file.task
        task = find_task(name, plugins)
    config = copy.deepcopy(task.config)
    given = {key: part for key, part in parts.items() if part is not None}
    names = {own.name for own in fields(config)}
    stray = {key for key, part in given.items() if key not in names or not isinstance(part, (str, Path))}
    if stray:
        raise HooklineError(
            f"a task has its own {' and '.join(sorted(stray))}: pass a TrainerConfig to hookline.train instead"
        )
    beneath = [] if file is None else [file.config]
    above = [Layer(given, "hookline.train: ", Path.cwd())] if given else []
    above += map(parse_assignment, assignments)
    run_dir = changes.get("run_dir") or (file.run_dir if file is not None else None)
    if isinstance(what, str) and name is not None and changes.get("resume") and run_dir is not None:
        in_file = apply_layers(config, beneath)
        config = recorded_config(in_file, name, run_dir)
        _log_ignored(beneath, in_file, config)
        beneath = []
    config = apply_layers(config, [*beneath, *above])
    return task, replace(config, **({"task": name} | changes))


def _log_ignored(layers: Sequence[Layer], in_file: TrainerConfig, recorded: TrainerConfig) -> None:
    """Name the values of a run file that a resumed run does not use."""
    of_file, of_run = as_plain_data(in_file), as_plain_data(recorded)
    for layer in layers:
        for path in paths_of(layer.table):
            new, old = _at(of_file, path), _at(of_run, path)
            if new != old and not isinstance(new, Mapping):
                shown = redact({path: old})[path]
                logger.info(
                    "%s%s is ignored: the resumed run keeps its recorded value %s; change it by --set %s=...",
                    layer.where,
                    path,
                    shown,
                    path,
                )


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
