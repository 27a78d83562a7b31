"""`train`: a run with all installed plugins, in one call; and a run's config and trainer, read back from its folder."""

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
"""Said anew whenever a run is started: its folder may have been moved."""


def recorded_config(config: TrainerConfig, task: str, run_dir: Path) -> TrainerConfig:
    """The config that the run in `run_dir` had, for a run of the same task: the task's own, but for what was changed.

    :param task: the task's whole name. The config of another task is left alone.
    """
    recorded = read_config(run_dir) if (run_dir / CONFIG).exists() else {}
    # A task in a file is named by the file's path, and the file may have been moved with the run.
    if Path(str(recorded.get("task"))).name != Path(task).name or not isinstance(recorded.get("trainer"), Mapping):
        return config
    plain = {name: value for name, value in recorded["trainer"].items() if name not in OF_THIS_START}
    return _changed_as_recorded(config, plain, str(run_dir / CONFIG))


def _changed_as_recorded(config: T, recorded: Mapping[str, Any], where: str) -> T:
    """`config` with those fields changed that are recorded otherwise. A field that JSON cannot hold stays as it is."""
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
            raise TrainerConfigError(f"{where}: {name} has a secret in it, which is not written down: give it again")
        try:
            changes[name] = TypeAdapter(hints[name]).validate_python(before)
        except ValidationError as error:
            raise TrainerConfigError(f"{where}: {name} = {before!r} does not fit this version: {error}") from error
    return replace(config, **changes)  # type: ignore[type-var]


def rebuild_trainer(run_dir: Path, plugins: PluginManager | None = None) -> Trainer:
    """The trainer that a run in `run_dir` had at its beginning, with fresh weights and no folder of its own.

    :param plugins: where its events go, and where its task is looked for if it is a plugin's; by default to no plugin.
    """
    plugins = plugins or PluginManager()
    config = read_config(run_dir)
    name = config.get("task")
    if config.get("host"):
        raise RunFolderError(
            f"the run in {run_dir} was trained by {config['host']}, whose model and data this folder does not have: "
            f"load the model from a checkpoint of {config['host']} and evaluate it there"
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
    """Train with the installed plugins, and return the trainer; `Trainer` says what the parts are.

    :param what: the name of a task as `hookline train` takes it, a task, or the config for parts of your own.
    :param hooks: whatever `Trainer.add_hook` takes, besides the plugins.
    :param settings: which installed plugins are wanted, and how (default: those of this folder and environment).
    :param profile: measure what each plugin costs: a table in the end, and a trace in the run's folder.
    :param changes: fields of the config, such as `epochs=5` or `run_dir=Path("runs/mine")`. With `resume=True` and the
        name of a task, all other fields are as the run began; a config or a task that you give is used as it is.
    """
    parts = {"curriculum": curriculum, "policy": policy, "dataset": dataset, "validation_dataset": validation_dataset}
    with plugins_for_a_run(settings=settings, profile=profile) as plugins:
        if isinstance(what, (str, Task)):
            given = [name for name, part in parts.items() if part is not None]
            if given:
                raise HooklineError(f"a task has its own {' and '.join(given)}: give hookline.train a config instead")
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
