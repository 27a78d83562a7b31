"""`Task`: a function that makes a trainer, and the config that it suits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hookline.plugin_manager.faults import exits_as_errors
from hookline.plugin_manager.manager import PluginManager
from hookline.training.config import TrainerConfig
from hookline.training.errors import TrainingError
from hookline.training.trainer import Trainer

__all__ = ["Build", "Task", "task"]

Build = Callable[[TrainerConfig, PluginManager], Trainer]
"""Makes the trainer of a task, with the plugins of the run."""


@dataclass(frozen=True)
class Task:
    """Something to be trained."""

    build: Build
    config: TrainerConfig = field(default_factory=TrainerConfig)
    """What it is trained with, unless said otherwise."""

    def trainer(self, plugins: PluginManager, **changes: Any) -> Trainer:
        """The trainer for the task's own config with some changes, such as `epochs=5`."""
        return self.make(replace(copy.deepcopy(self.config), **changes), plugins)

    def make(self, config: TrainerConfig, plugins: PluginManager) -> Trainer:
        """The trainer for a config, checked to be one."""
        function = f"the task's function {getattr(self.build, '__qualname__', self.build)!r}"
        with exits_as_errors(function):
            trainer: Any = self.build(config, plugins)
        if not isinstance(trainer, Trainer):
            raise TrainingError(f"{function} returned {trainer!r}: it must return the Trainer that it makes")
        return trainer


def task(**config: Any) -> Callable[[Build], Task]:
    """Make a function a task that suits this `TrainerConfig`."""
    return lambda build: Task(build, TrainerConfig(**config))
