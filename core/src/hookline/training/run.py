"""`train`: a run with all installed plugins in one call. Also restores a run's config and trainer from its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hookline.errors import HooklineError
from hookline.plugin_manager.manager import PluginManager
from hookline.plugin_manager.settings import Settings, is_redacted
from hookline.session.opening import plugins_for_a_run
from hookline.session.run_folder import CONFIG, RunFolderError, read_config
from hookline.training.config import TrainerConfig, as_plain_data, from_plain_data
from hookline.training.errors import TrainerConfigError
from hookline.training.tasks import Task, find_task
from hookline.training.tasks.registry import full_name
from hookline.training.trainer import Trainer
from hookline_hookspecs.redaction import redact

if TYPE_CHECKING:
    from hookline.rollout import Curriculum, CurriculumConfig

__all__ = ["rebuild_trainer", "recorded_config", "train"]

T = TypeVar("T")

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
    **changes: Any,
) -> Trainer:
    """Train with the installed plugins and return the trainer. `Trainer` documents the other parameters.

    :param what: the name of a task, as for `hookline train`, a `Task`, or a `TrainerConfig`.
    :param hooks: further hooks for `Trainer.add_hook`.
    :param settings: which plugins are active, and their options; by default those of this folder and environment.
    :param profile: measure the time of each plugin; print a table and write a trace to the run's folder.
    :param changes: fields of the config, such as `epochs=5` or `run_dir=Path("runs/mine")`. With `resume=True` and the
        name of a task, all other fields are those recorded in the run's folder.
    """
    parts = {"curriculum": curriculum, "policy": policy, "dataset": dataset, "validation_dataset": validation_dataset}
    with plugins_for_a_run(settings=settings, profile=profile) as plugins:
        if isinstance(what, (str, Task)):
            given = [name for name, part in parts.items() if part is not None]
            if given:
                raise HooklineError(
                    f"a task has its own {' and '.join(given)}: pass a TrainerConfig to hookline.train instead"
                )
            trainer = _trainer_of_task(what, plugins, changes)
        else:
            trainer = Trainer(replace(what or TrainerConfig(), **changes), **parts, plugins=plugins)
        for hook in hooks:
            trainer.add_hook(hook)
        try:
            trainer.train()
        finally:
            run_dir = trainer.state.run_dir
            if plugins.timer is not None and run_dir is not None and run_dir.is_dir():
                plugins.timer.write_chrome_trace(run_dir / "plugins.trace.json")
    return trainer


def _trainer_of_task(what: str | Task, plugins: PluginManager, changes: dict[str, Any]) -> Trainer:
    if isinstance(what, Task):
        return what.trainer(plugins, **changes)
    task, name = find_task(what, plugins), full_name(what)
    if changes.get("resume") and changes.get("run_dir") is not None:
        task = replace(task, config=recorded_config(task.config, name, changes["run_dir"]))
    return task.trainer(plugins, task=name, **changes)
