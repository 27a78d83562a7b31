"""`train`: a run with all installed plugins, in one call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hookline.plugins.errors import HooklineError
from hookline.plugins.manager import PluginManager
from hookline.plugins.settings import Settings
from hookline.session.opening import plugins_for_a_run
from hookline.training.config import TrainerConfig
from hookline.training.runs import recorded_config
from hookline.training.tasks import Task, find_task
from hookline.training.tasks.finding import full_name
from hookline.training.trainer import Trainer

if TYPE_CHECKING:
    from hookline.rollout import Curriculum, CurriculumConfig

__all__ = ["train"]


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
