"""A run's trainer, built again from the run's folder: for whoever evaluates a run or looks into it afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hookline.plugins.manager import PluginManager
from hookline.session.run_folder import RunFolderError, read_config
from hookline.training.config import from_plain_data
from hookline.training.tasks import find_task
from hookline.training.trainer import Trainer

__all__ = ["rebuild_trainer"]


def rebuild_trainer(run_dir: Path, plugins: PluginManager | None = None) -> Trainer:
    """The trainer that a run in `run_dir` had at its beginning, with fresh weights and no folder of its own.

    :param plugins: where its events go, and where its task is looked for if it is a plugin's; by default to nobody.
    """
    plugins = plugins or PluginManager()
    config = read_config(run_dir)
    name = config.get("task")
    if not isinstance(name, str) or "trainer" not in config:
        raise RunFolderError(
            f"the run in {run_dir} was not started by the name of a task, so its trainer cannot be built again: "
            "start it with `hookline train TASK` or hookline.train(TASK)"
        )
    task = find_task(name, plugins)
    own = from_plain_data(type(task.config), config["trainer"])
    return task.build(replace(own, run_dir=None, resume=False), plugins)
